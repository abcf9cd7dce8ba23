"""All that needs a GPU, checked and measured by one command on a bare machine, in some minutes.

    python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --dry-run --out gpu.json

Needs Python 3.11, torch with CUDA, numpy, ml_dtypes and an NVIDIA GPU, and of this repository `benchmarks/gpu.py`,
`benchmarks/_gpu/`, `runtime/`, `decoding/` and `hwprofiles/models/`. Weights are random, of the shapes in
`hwprofiles/models`. Without a GPU it says so and exits 2. `--dry-run` does the same on the CPU with tiny shapes: times
of it mean nothing.

Writes one JSON, in SI units: `checks` (captured calls against the decoder on the CPU, and replay against the same calls
without capture), `memory` (bytes a second of a copy, read and written), `layers` (per layer, by rows and context, with
the bytes of weights and of the keys and values of the context, and bytes a second), `heads` (output head alone, and
with the best ids of an exit), `replay` (a replay, and the sum of its kernels), `rounds` (a verification after the
other, and what of it no layer or head ran), `draft` (a step of all layers and the head by branches), `streams` (two
at once against alone), `channel` (round trips of so many bytes). `left_out` has what was not reached in time,
or did not fit. The file is written after each part, so what was measured before an interruption is in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from _gpu.models import DRAFT, TARGETS, config_of, prepared_text, random_decoder
from _gpu.session import DRY, Session, Sizes, describe
from _gpu.targets import targets

from runtime.arrays import on_host
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import GraphCapture, new_stream
from runtime.backends.eager import wait
from runtime.models.kv_cache import KVCache


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
            session.found["took_s"] = round(time.monotonic() - start_s, 1)
            options.out.write_text(json.dumps(session.found, indent=1) + "\n", encoding="utf-8")
            print(f"{part.__name__}: {session.found['took_s']:.0f} s", flush=True)
    print(options.out)
    return 0 if all(one["is_same"] for one in session.found["checks"]) else 1


def memory(session: Session) -> None:
    """How fast memory is read and written."""
    with session.part("memory") as add:
        count = session.sizes.copied
        source = torch.empty(count, dtype=torch.uint8, device=session.device)
        out = torch.empty_like(source)
        taken_s = session.seconds(lambda: out.copy_(source))
        add({"num_bytes": 2 * count, "seconds": taken_s, "bytes_per_s": 2 * count / taken_s})


def channel(session: Session) -> None:
    """Messages to the device and back."""
    with session.part("channel") as add:
        for count in session.sizes.num_bytes:
            values, there = (torch.zeros(count, dtype=torch.uint8, device=one) for one in ("cpu", session.device))

            def round_trip(values: torch.Tensor = values, there: torch.Tensor = there) -> None:
                there.copy_(values)
                there.cpu()

            add({"num_bytes": count, "round_trip_s": session.clocked(round_trip)})


def check(session: Session) -> None:
    """Greedy texts of a small decoder in float32: by captured calls, without capture, and on the CPU layer by layer."""
    torch.backends.cuda.matmul.allow_tf32 = False
    config = replace(config_of(DRAFT, shrink=16, num_layers=4), vocab_size=512)
    prompt, num_tokens = torch.arange(3, 120), 160
    decoder = random_decoder(config, torch.float32, torch.device("cpu"))
    expected = greedy_text(decoder, KVCache(config, len(prompt) + num_tokens, dtype=torch.float32), prompt, num_tokens)
    with session.part("checks") as add:
        for name, capture in (("captured", GraphCapture.captured), ("uncaptured", lambda _, run: run)):
            own, GraphCapture.captured = GraphCapture.captured, capture  # type: ignore[method-assign]
            try:
                backend = CudaBackend(random_decoder(config, torch.float32, session.device), device=session.device)
                text = backend.new_text()
                text.start(len(prompt) + num_tokens)
                found = greedy_text(backend, text, prompt, num_tokens)
            finally:
                GraphCapture.captured = own  # type: ignore[method-assign]
            add({"name": f"{name} calls write the decoder's text in float32", "is_same": found == expected})


def greedy_text(model: Any, cache: Any, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    """The ids of a prompt and of what follows it."""
    ids = prompt.tolist()
    for _ in range(num_tokens):
        positions = torch.arange(cache.cursor, len(ids))
        x_BTD = model.embedding(torch.tensor([ids[cache.cursor :]]))
        x_BTD = model.run_layers(x_BTD, 0, model.config.num_layers, positions=positions, cache=cache)
        cache.advance(len(positions))
        best = model.logits(x_BTD)[0, -1].argmax()
        ids.append(int(best))
    return ids


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
                    on_host(backend.logits(x_R1D).float().argmax(dim=-1))

                add({"model": DRAFT, "width": width, "context": context, "seconds": session.clocked(step)})


def streams(session: Session) -> None:
    """A target's layers and a draft's on two streams of one process: together, and each alone."""
    with session.part("streams") as add:
        sizes, device = session.sizes, session.device
        kept, replays = [], []  # a replay does not hold what it reads
        for name in (TARGETS[0], DRAFT):
            config = config_of(name, shrink=sizes.shrink, num_layers=sizes.num_layers)
            backend = CudaBackend(random_decoder(config, session.dtype, device), device=device)
            text, call = prepared_text(backend, min(8, sizes.rows[-1]), sizes.contexts[0])
            kept.append((backend, text))
            replays.append(call.replay)
        own = [new_stream(device) if device.type == "cuda" else None for _ in replays]
        seconds = [session.seconds(replay) for replay in replays]  # each is run so often that all take about as long
        counts = [max(1, round(sizes.repeats * max(seconds) / one)) for one in seconds]

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


def on_stream(stream: torch.cuda.Stream | None, run: Callable[[], object]) -> None:
    """Run in a stream, if there are any."""
    if stream is None:
        run()
        return
    with torch.cuda.stream(stream):
        run()


if __name__ == "__main__":
    sys.exit(main())
