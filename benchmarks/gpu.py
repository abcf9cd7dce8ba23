"""All that needs a GPU, checked and measured in under ten minutes by one command on a bare machine.

    python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --dry-run --out gpu.json

Needs Python 3.11, torch with CUDA and an NVIDIA GPU, and of this repository `benchmarks/gpu.py`, `runtime/`,
`decoding/` and `hwprofiles/models/`; no other package. Weights are random, of the shapes in `hwprofiles/models`.
Without a GPU it says so and exits 2. `--dry-run` does the same on the CPU with tiny shapes: times of it mean nothing.

Writes one JSON, in SI units: `checks` (captured calls against the decoder on the CPU, and replay against the same calls
without capture), `memory` (bytes a second of a copy, read and written), `layers` (per layer, by rows and context, with
the bytes of weights and of the keys and values of the context, and bytes a second), `heads` (output head alone, and
with the best ids of an exit), `replay` (a replay, and the sum of its kernels), `rounds` (a verification after the
other, and what of it no layer or head ran), `draft` (a step of all layers and the head by branches), `streams` (two
at once against alone), `channel` (round trips of so many bytes). `left_out` has what was not reached in time,
or did not fit.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from runtime.backends.backend import Plan, segments_between
from runtime.backends.cuda.capture import GraphCapture, elapsed_s, new_stream, wait
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import SegmentCall
from runtime.backends.cuda.pinned import Download, Upload
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Rotary
from runtime.models.kv_cache import KVCache
from runtime.models.random_weights import fill_at_random
from runtime.models.ranking import ranked_ids

MODELS: Final = Path(__file__).parents[1] / "hwprofiles" / "models"
TARGETS: Final = ("qwen3-14b", "qwen3-32b", "opt-66b")
DRAFT: Final = "qwen3-0.6b"
EXIT_IDS: Final = 8
Rows = list[dict[str, Any]]


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        num_layers: of a target whose layers are measured: enough that none stays in a cache.
        rows: of a call.
        contexts: slots before it.
        widths: branches of a draft.
        num_bytes: that cross to the device and back.
        copied: bytes of the copy that tells the memory's speed.
        repeats: of everything.
        shrink: what sizes of models are divided by.
    """

    num_layers: int = 4
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    contexts: tuple[int, ...] = (128, 1024, 2048, 4096, 8192)
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    num_bytes: tuple[int, ...] = (64, 4096, 65_536, 1_048_576)
    copied: int = 4_000_000_000
    repeats: int = 30
    shrink: int = 1


DRY: Final = Sizes(
    num_layers=2, rows=(1, 16), contexts=(16, 300), widths=(1, 4), num_bytes=(64,), copied=1024, repeats=2, shrink=128
)


class Session:
    """One run: the device, what is found, and the time that is left."""

    def __init__(self, device: torch.device, sizes: Sizes, minutes: float) -> None:
        self.device, self.sizes = device, sizes
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.found: dict[str, Any] = {"left_out": []}
        self._end_s = time.monotonic() + 60 * minutes

    @contextmanager
    def part(self, name: str) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Collect entries of a part; what does not fit or is not reached is noted, and the others go on."""
        entries: Rows = self.found.setdefault(name, [])

        def add(entry: dict[str, Any]) -> None:
            entries.append(entry)
            if time.monotonic() > self._end_s:
                raise TimeoutError

        try:
            yield add
        except (torch.OutOfMemoryError, MemoryError, TimeoutError) as error:
            self.leave_out(name, type(error).__name__)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def leave_out(self, what: str, why: str) -> None:
        """Note what is missing."""
        self.found["left_out"].append({"what": what, "why": why})

    def seconds(self, run: Callable[[], object], *, warm_up: int = 3) -> float:
        """The median of runs that follow each other, by the device's own clock."""
        for _ in range(warm_up):
            run()
        return median(elapsed_s(run, self.device, repeats=self.sizes.repeats))

    def clocked(self, run: Callable[[], object], *, warm_up: int = 3) -> float:
        """The median of runs by the host's clock, each waited for."""
        taken = []
        for _ in range(warm_up + self.sizes.repeats):
            start_s = time.perf_counter()
            run()
            wait(self.device)
            taken.append(time.perf_counter() - start_s)
        return median(taken[warm_up:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and measure everything, and write the JSON; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--minutes", type=float, default=8.0, help="no new part is begun after so many")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    options = parser.parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no NVIDIA GPU here: nothing was measured", file=sys.stderr)
        return 2
    device = torch.device("cpu" if options.dry_run else "cuda:0")
    session = Session(device, DRY if options.dry_run else Sizes(), options.minutes)
    session.found["device"] = describe(device, is_dry_run=options.dry_run)
    start_s = time.monotonic()
    with torch.inference_mode():
        for part in (check, memory, channel, draft, streams, targets):
            part(session)
            print(f"{part.__name__}: {time.monotonic() - start_s:.0f} s", flush=True)
    session.found["took_s"] = round(time.monotonic() - start_s, 1)
    options.out.write_text(json.dumps(session.found, indent=1) + "\n", encoding="utf-8")
    print(options.out)
    return 0 if all(one["is_same"] for one in session.found["checks"]) else 1


def describe(device: torch.device, *, is_dry_run: bool) -> dict[str, Any]:
    """What was measured, and with what."""
    found = {
        "is_dry_run": is_dry_run,
        "name": "the CPU",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "num_multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
        }
    return found


def read_shape(name: str) -> dict[str, Any]:
    """A shape's file, whose lines are `name: value`: a bare machine has no reader of YAML."""
    lines = (MODELS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(": ", 1) for line in lines if ": " in line and not line.startswith(("#", " ")))
    return {
        key: json.loads(value) if value[0].isdigit() or value in {"true", "false"} else value for key, value in pairs
    }


def config_of(name: str, *, shrink: int = 1, num_layers: int | None = None) -> ModelConfig:
    """A model's shape as a decoder has it; its sizes divided by `shrink` to be tiny, but for those of a head."""
    shape = read_shape(name)
    is_opt = "learned_positions" in shape
    num_kv = max(1, shape["num_kv_heads"] // shrink)
    family: dict[str, Any] = {"architecture": "Qwen3ForCausalLM", "qk_norm": True}
    if is_opt:
        biases = dict.fromkeys(("attention_bias", "attention_out_bias", "mlp_bias"), True)
        family = {"architecture": "OPTForCausalLM", "positions": "learned", "norm": "layer", "mlp": "relu", **biases}
    return ModelConfig(
        vocab_size=max(64, shape["vocab_size"] // shrink),
        num_layers=min(shape["num_layers"], num_layers or shape["num_layers"]),
        hidden_size=max(8, shape["hidden_size"] // shrink),
        intermediate_size=max(8, shape["intermediate_size"] // shrink),
        num_heads=num_kv * (shape["num_heads"] // shape["num_kv_heads"]),
        num_kv_heads=num_kv,
        head_dim=max(4, shape["head_dim"] // shrink),
        max_position=shape["max_position"],
        rope_theta=0.0 if is_opt else 1e6,
        norm_eps=1e-6,
        tie_embeddings=shape["tie_embeddings"],
        **family,
    )


def random_decoder(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A decoder of random weights, made on the device."""
    with torch.device("meta"):
        decoder = Decoder(config)
    fill_at_random(decoder, 0, dtype, str(device))
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config, config.max_position).to(device)
    return decoder.eval().requires_grad_(requires_grad=False)


def check(session: Session) -> None:
    """Greedy texts of a small decoder in float32: by captured calls, without capture, and on the CPU layer by layer."""
    torch.backends.cuda.matmul.allow_tf32 = False
    config = replace(config_of(DRAFT, shrink=16, num_layers=4), vocab_size=512)
    prompt, num_tokens = torch.arange(3, 120), 160
    expected = text_by(random_decoder(config, torch.float32, torch.device("cpu")), prompt, num_tokens)
    with session.part("checks") as add:
        for name, capture in (("captured", GraphCapture.captured), ("uncaptured", lambda _, run: run)):
            own, GraphCapture.captured = GraphCapture.captured, capture  # type: ignore[method-assign]
            try:
                backend = CudaBackend(random_decoder(config, torch.float32, session.device), device=session.device)
                found = captured_text(backend, prompt, num_tokens)
            finally:
                GraphCapture.captured = own  # type: ignore[method-assign]
            add({"name": f"{name} calls write the decoder's text in float32", "is_same": found == expected})


def text_by(decoder: Decoder, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    """What a decoder writes after a prompt, layer by layer."""
    cache, ids = KVCache(decoder.config, len(prompt) + num_tokens, dtype=torch.float32), prompt.tolist()
    for _ in range(num_tokens):
        positions = torch.arange(cache.cursor, len(ids))
        x_BTD = decoder.embedding(torch.tensor([ids[cache.cursor :]]))
        x_BTD = decoder.run_layers(x_BTD, 0, decoder.config.num_layers, positions=positions, cache=cache)
        cache.advance(len(positions))
        ids.append(int(decoder.logits(x_BTD)[0, -1].argmax()))
    return ids


def captured_text(backend: CudaBackend, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    """The same by a back end."""
    text, ids = backend.new_text(), prompt.tolist()
    text.start(len(prompt) + num_tokens)
    for _ in range(num_tokens):
        positions = torch.arange(text.cursor, len(ids))
        x_BTD = backend.embedding(torch.tensor([ids[text.cursor :]]))
        x_BTD = backend.run_layers(x_BTD, 0, backend.config.num_layers, positions=positions, cache=text)
        text.advance(len(positions))
        (best,) = backend.on_host(backend.logits(x_BTD)[0, -1].argmax())
        ids.append(int(best))
    return ids


def memory(session: Session) -> None:
    """How fast memory is read and written."""
    with session.part("memory") as add:
        count = session.sizes.copied
        source = torch.empty(count, dtype=torch.uint8, device=session.device)
        out = torch.empty_like(source)
        taken_s = session.seconds(lambda: out.copy_(source))
        add({"num_bytes": 2 * count, "seconds": taken_s, "bytes_per_s": 2 * count / taken_s})


def channel(session: Session) -> None:
    """Pinned messages to the device and back."""
    with session.part("channel") as add:
        download = Download(session.device)
        for count in session.sizes.num_bytes:
            upload, values = Upload((count,), torch.uint8, session.device), torch.zeros(count, dtype=torch.uint8)

            def round_trip(upload: Upload = upload, values: torch.Tensor = values) -> None:
                upload.send(values)
                download.fetch(upload.values)

            add({"num_bytes": count, "round_trip_s": session.clocked(round_trip)})


def prepared_text(backend: CudaBackend, rows: int, context: int) -> tuple[Any, SegmentCall]:
    """A random text, and the call of all layers over rows after it."""
    layers = backend.config.num_layers
    text = backend.new_text()
    backend.prepare(
        Plan(
            num_slots=context + rows,
            num_prompt=0,
            rows=(rows,),
            segments=segments_between(layers),
            prompt_segments=(),
            least_slots=context,
        )
    )
    text.start(context + rows)
    text.fill_random(context)
    x_BTD = backend.embedding(torch.zeros(1, rows, dtype=torch.long))
    before = set(text.memory.calls)
    backend.run_layers(x_BTD, 0, layers, positions=torch.arange(context, context + rows), cache=text)
    assert set(text.memory.calls) == before, "a call that was not prepared"
    shape = min(text.memory.calls, key=lambda one: one.num_slots)
    return text, text.memory.calls[shape]


def targets(session: Session) -> None:
    """Layers, heads and rounds of every target."""
    sizes = session.sizes
    for name in TARGETS:
        with session.part("layers") as add:
            config = config_of(name, shrink=sizes.shrink, num_layers=sizes.num_layers)
            backend = CudaBackend(random_decoder(config, session.dtype, session.device), device=session.device)
            heads(session, name, backend)
            for context in [one for one in sizes.contexts if one + max(sizes.rows) <= config.max_position]:
                for rows in sizes.rows:
                    _, call = prepared_text(backend, rows, context)
                    add(
                        {"model": name, "rows": rows, "context": context, **layer_times(session, config, call, context)}
                    )
            replays(session, name, backend)
            rounds(session, name, backend)


def layer_times(session: Session, config: ModelConfig, call: SegmentCall, context: int) -> dict[str, float]:
    """Seconds and bytes of a layer."""
    item = session.dtype.itemsize
    seconds = session.seconds(call.replay) / config.num_layers
    weights = config.num_layer_parameters * item
    keys_values = 2 * config.num_kv_heads * config.head_dim * context * item
    return {
        "seconds": seconds,
        "weight_bytes": weights,
        "key_value_bytes": keys_values,
        "bytes_per_s": (weights + keys_values) / seconds,
    }


def heads(session: Session, name: str, backend: CudaBackend) -> None:
    """The output head, and an exit: the same, the best ids and their way to the host."""
    with session.part("heads") as add:
        for rows in session.sizes.rows:
            x_BTD = torch.randn(1, rows, backend.config.hidden_size).to(session.device, session.dtype)

            def read_exit(x_BTD: torch.Tensor = x_BTD) -> None:
                logits = backend.logits(x_BTD)[0]
                ids = ranked_ids(logits, EXIT_IDS)
                wide = logits.float()
                backend.on_host(ids, wide.gather(-1, ids) - wide.logsumexp(dim=-1, keepdim=True))

            def head(x_BTD: torch.Tensor = x_BTD) -> None:
                backend.logits(x_BTD)

            add({"model": name, "rows": rows, "head_s": session.seconds(head), "exit_s": session.clocked(read_exit)})


def replays(session: Session, name: str, backend: CudaBackend) -> None:
    """A replay against the kernels it is made of, each timed alone."""
    with session.part("replay") as add:
        for context in session.sizes.contexts[:2]:
            _, call = prepared_text(backend, session.sizes.rows[-1], context)
            replay_s, kernels_s = session.seconds(call.replay), kernel_seconds(call.run, session.device)
            add({"model": name, "context": context, "replay_s": replay_s, "kernels_s": kernels_s})


def kernel_seconds(run: Callable[[], object], device: torch.device) -> float:
    """The sum of what the kernels of a run take."""
    kinds = torch.profiler.ProfilerActivity
    is_gpu = device.type == "cuda"
    run()
    with torch.profiler.profile(activities=[kinds.CUDA if is_gpu else kinds.CPU]) as profile:
        run()
        wait(device)
    name = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    return float(sum(getattr(one, name) for one in profile.key_averages())) / 1e6


def rounds(session: Session, name: str, backend: CudaBackend) -> None:
    """Verification after verification as on a hit, the window being there: and what of it nothing runs."""
    with session.part("rounds") as add:
        rows, context = min(8, session.sizes.rows[-1]), session.sizes.contexts[0]
        text, call = prepared_text(backend, rows, context)
        positions, layers = torch.arange(context, context + rows), backend.config.num_layers

        def one_round() -> None:
            x_BTD = backend.embedding(torch.zeros(1, rows, dtype=torch.long))
            x_BTD = backend.run_layers(x_BTD, 0, layers, positions=positions, cache=text)
            backend.on_host(backend.logits(x_BTD)[0].float().argmax(dim=-1))

        round_s, layers_s = session.clocked(one_round), session.seconds(call.replay)
        x_BTD = torch.zeros(1, rows, backend.config.hidden_size, dtype=session.dtype, device=session.device)
        head_s = session.seconds(lambda: backend.logits(x_BTD))
        idle_s = round_s - layers_s - head_s
        add({"model": name, "rows": rows, "round_s": round_s, "layers_s": layers_s, "head_s": head_s, "rest_s": idle_s})


def draft(session: Session) -> None:
    """Steps of a draft: a row of every branch through all layers and the head, and the proposals on the host."""
    sizes = session.sizes
    with session.part("draft") as add:
        config = config_of(DRAFT, shrink=sizes.shrink, num_layers=sizes.num_layers if sizes.shrink > 1 else None)
        backend = CudaBackend(random_decoder(config, session.dtype, session.device), device=session.device)
        for context in sizes.contexts[:2]:
            for width in sizes.widths:
                branches = backend.new_branches(width)
                branches.start(context + 1)
                branches.fill_random()
                ids = torch.zeros(width, 1, dtype=torch.long)

                def step(branches: Any = branches, ids: torch.Tensor = ids, context: int = context) -> None:
                    rows = branches.rows(slice(0, len(ids)), [[context]] * len(ids))
                    x_R1D = backend.embedding(ids)
                    positions = rows.positions_RT
                    x_R1D = backend.run_layers(x_R1D, 0, config.num_layers, positions=positions, cache=rows)
                    backend.on_host(backend.logits(x_R1D).float().argmax(dim=-1))

                add({"model": DRAFT, "width": width, "context": context, "seconds": session.clocked(step)})


def streams(session: Session) -> None:
    """A target's layers and a draft's on two streams of one process: together, and each alone."""
    with session.part("streams") as add:
        sizes, device = session.sizes, session.device
        replays = []
        for name in (TARGETS[0], DRAFT):
            config = config_of(name, shrink=sizes.shrink, num_layers=sizes.num_layers)
            backend = CudaBackend(random_decoder(config, session.dtype, device), device=device)
            replays.append(prepared_text(backend, min(8, sizes.rows[-1]), sizes.contexts[0])[1].replay)
        own = [new_stream(device) if device.type == "cuda" else None for _ in replays]
        counts = balanced([session.seconds(replay) for replay in replays], sizes.repeats)

        def run(places: Sequence[int]) -> float:
            wait(device)
            start_s = time.perf_counter()
            for step in range(max(counts)):
                for place in places:
                    if step < counts[place]:
                        on_stream(own[place], replays[place])
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return time.perf_counter() - start_s

        for places in ((0,), (1,), (0, 1)):
            run(places)
            names = [(TARGETS[0], DRAFT)[place] for place in places]
            add({"streams": names, "runs": [counts[place] for place in places], "seconds": run(places)})


def balanced(seconds: Sequence[float], repeats: int) -> list[int]:
    """How often each is run, so that all take about as long."""
    return [max(1, round(repeats * max(seconds) / one)) for one in seconds]


def on_stream(stream: torch.cuda.Stream | None, run: Callable[[], object]) -> None:
    """Run in a stream, if there are any."""
    if stream is None:
        run()
        return
    with torch.cuda.stream(stream):
        run()


if __name__ == "__main__":
    sys.exit(main())
