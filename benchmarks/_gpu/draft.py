"""What is measured of a draft on a GPU: its steps, and its layers next to those of a target."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from _gpu.models import DRAFT, TARGETS, config_of, prepared_text, random_decoder
from _gpu.session import Session
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import new_stream
from runtime.backends.eager import wait


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
