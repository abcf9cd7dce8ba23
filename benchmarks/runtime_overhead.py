"""What a lane process costs: plain decoding by a bare loop, through the engine, and by transformers, in turns.

    python benchmarks/runtime_overhead.py --cores 0 --threads 1

All three decode the same greedy text in the same weights on the same cores and threads; prefill is not counted.
Turns are interleaved, so that a machine that changes its pace changes it for all. Writes
benchmarks/results/runtime_overhead.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
Decode = Callable[[], tuple[list[int], float]]
"""Returns the new tokens, and the seconds between the first and the last of them."""


def main() -> None:
    """Measure and write the result file."""
    options = _options()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(options.threads)  # before torch is imported

    from _common import measured, write_result

    from hwprofiles.host import describe_host
    from runtime.models.model_folder import resolve_model
    from runtime.models.tokenizer import Tokenizer

    folder = resolve_model(options.model)
    ids = Tokenizer.from_folder(folder).encode(options.prompt)
    with _contestants(folder, ids, options) as contestants:
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        texts = {name: decode()[0] for name, decode in contestants.items()}  # the first turn warms up
        for turn in range(options.turns):
            for name, decode in contestants.items():
                seconds[name].append(decode()[1] / (options.tokens - 1))
            print(f"turn {turn + 1}: " + ", ".join(f"{name} {each[-1] * 1e3:.2f} ms" for name, each in seconds.items()))
    medians = {name: median(each) for name, each in seconds.items()}
    result = {
        "host": describe_host(),
        "measured": measured(folder),
        "model": options.model,
        "dtype": options.dtype,
        "cores": options.cores,
        "threads": options.threads,
        "tokens": options.tokens,
        "turns": options.turns,
        "seconds_per_token": medians,
        "engine_over_bare_loop": medians["engine"] / medians["bare loop"],
        "texts_are_equal": len({tuple(text) for text in texts.values()}) == 1,
    }
    write_result(options.output, result)
    print(f"engine / bare loop: {result['engine_over_bare_loop']:.3f}, written to {options.output}")


@contextmanager
def _contestants(folder: Path, ids: list[int], options: argparse.Namespace) -> Iterator[dict[str, Decode]]:
    import torch

    from runtime.engine import Engine
    from runtime.lanes.lane import LaneSpec

    torch.set_num_threads(options.threads)
    spec = LaneSpec(name="cpu", cores=tuple(options.cores), num_threads=options.threads)
    with Engine(folder, lanes=[spec], dtype=options.dtype) as engine:
        contestants = {
            "bare loop": _pinned(_bare_loop(folder, ids, options), options.cores),
            "engine": _engine(engine, ids, options),
        }
        if not options.without_transformers:
            contestants["transformers"] = _pinned(_transformers(folder, ids, options), options.cores)
        yield contestants


def _bare_loop(folder: Path, ids: list[int], options: argparse.Namespace) -> Decode:
    """The decoder alone: embedding, layers, head, argmax."""
    import torch

    from runtime.models.decoder import causal_mask
    from runtime.models.kv_cache import KVCache
    from runtime.models.weights import load_decoder

    dtype = getattr(torch, options.dtype)
    decoder = load_decoder(folder, dtype=dtype)
    num_layers = decoder.config.num_layers
    cache = KVCache(decoder.config, len(ids) + options.tokens, dtype=dtype)

    def step(tokens: list[int]) -> int:
        start, count = cache.cursor, len(tokens)
        x_BTD = decoder.run_layers(
            decoder.embedding(torch.tensor([tokens])),
            0,
            num_layers,
            positions=torch.arange(start, start + count),
            mask=causal_mask(count, dtype) if count > 1 else None,
            cache=cache,
        )
        cache.advance(count)
        return int(decoder.logits(x_BTD[:, -1:]).float().argmax())

    @torch.inference_mode()
    def decode() -> tuple[list[int], float]:
        cache.set_length(0)
        tokens = [step(ids)]
        start_s = time.perf_counter()
        while len(tokens) < options.tokens:
            tokens.append(step(tokens[-1:]))
        return tokens, time.perf_counter() - start_s

    return decode


def _engine(engine: Any, ids: list[int], options: argparse.Namespace) -> Decode:
    from decoding.schedule import Schedule

    schedule = Schedule(method="autoregressive", target_lane="cpu")

    def decode() -> tuple[list[int], float]:
        found = engine.generate(schedule, ids, max_new_tokens=options.tokens, eos_token_ids=())
        return list(found.tokens), found.trace.decode_s - found.trace.rounds[0].end_s

    return decode


def _transformers(folder: Path, ids: list[int], options: argparse.Namespace) -> Decode:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, options.dtype)).eval()
    # the model's end is not ours: all three decode the same number of tokens
    model.generation_config.eos_token_id = None
    prompt = torch.tensor([ids])

    class Clock(transformers.generation.BaseStreamer):
        """Notes when each token comes; the prompt is the first call."""

        def __init__(self) -> None:
            self.times_s: list[float] = []

        def put(self, value: Any) -> None:  # noqa: ARG002
            self.times_s.append(time.perf_counter())

        def end(self) -> None:
            pass

    @torch.inference_mode()
    def decode() -> tuple[list[int], float]:
        clock = Clock()
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=options.tokens,
            streamer=clock,
            pad_token_id=0,
        )
        return found[0, len(ids) :].tolist(), clock.times_s[-1] - clock.times_s[1]

    return decode


def _pinned(decode: Decode, cores: list[int]) -> Decode:
    """Decode on the cores of the lane; the parent of a lane is free to run elsewhere."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return decode

    def pinned() -> tuple[list[int], float]:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            return decode()
        finally:
            os.sched_setaffinity(0, before)

    return pinned


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompt", default="The lighthouse keeper climbed the stairs one last time and")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--cores", type=int, nargs="*", default=[0], help="cores of the lane; none leaves it free")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS / "runtime_overhead.json")
    options = parser.parse_args()
    if options.tokens < 2:
        parser.error("--tokens must be at least 2")
    return options


if __name__ == "__main__":
    main()
