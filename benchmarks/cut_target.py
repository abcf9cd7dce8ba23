"""What it costs to read hidden states on the way through a target: as outputs of one graph, or by cutting it there.

    python benchmarks/cut_target.py     a minute

Passes of one row after 300 tokens, on one core and on all: by one graph, by one that also returns the states after six
layers, and by graphs that end at these layers. The three take turns, ten times in a round; all rounds are kept. That
all compute the same bits is checked. Writes benchmarks/results/cut-target.json. Nothing else should run on the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import _common
import ml_dtypes
import numpy as np

from mirrorsd.model_pair import ModelPair, find_pair
from runtime.backends.backend import Preparation, segments_between
from runtime.backends.lane_device import Device
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.storage.stored_decoder import load_stored_decoder

CONTEXT, REPEATS, LAYERS = 300, 10, (4, 8, 12, 16, 20, 24)
WAYS: Final = {"whole": ((), ()), "states": ((), LAYERS), "cut": (LAYERS, ())}
"""By name the layers at which the target is cut, and those whose states are outputs."""
Pass = Callable[[], np.ndarray[Any, Any]]


def main() -> None:
    """Measure and write the result file."""
    options = _common.arguments(__doc__, out=_common.RESULTS / "cut-target.json", rounds=12).parse_args()
    pair = find_pair(_common.EMBEDDED, heads=(), dtype="bfloat16")
    cores, found = sorted(os.sched_getaffinity(0)), dict[str, Any]()
    for used in (cores, cores[:1]):  # all first: threads stay on the cores on which they began
        os.sched_setaffinity(0, used)
        passes = {name: one_pass(pair, len(used), *way) for name, way in WAYS.items()}
        found[str(len(used))] = timed(passes, options.rounds)
    _common.print_result(options.out, {**_common.facts(pair), "by_cores": found})


def one_pass(pair: ModelPair, num_threads: int, cuts: tuple[int, ...], states: tuple[int, ...]) -> Pass:
    """Return a pass of one row by a target of its own."""
    stored = load_stored_decoder(pair.target_folder, np.dtype(ml_dtypes.bfloat16))
    device = Device.of_lane("openvino:CPU")
    backend = CompiledDecoder(stored, device=device, form="bfloat16", num_threads=num_threads)
    last, text = backend.config.num_layers, backend.new_text()
    segments = segments_between(*cuts, last)
    backend.prepare(
        Preparation(
            num_slots=CONTEXT + 1, num_prompt=0, rows=(1,), segments=segments, prompt_segments=(), states=states
        )
    )
    text.start(CONTEXT + 1)
    text.fill_random(CONTEXT)
    ids, positions = np.array([[7]]), np.array([CONTEXT])

    def run() -> np.ndarray[Any, Any]:
        text.set_length(CONTEXT)
        return backend.run_keeping(backend.embedding(ids), 0, last, states, positions=positions, cache=text)[0]

    return run


def timed(passes: dict[str, Pass], num_rounds: int) -> dict[str, Any]:
    """Return the milliseconds of a pass in every round, and the ratio of each way to the whole graph."""
    assert len({run().tobytes() for run in passes.values()}) == 1, "a cut or an output has changed bits"

    def milliseconds(name: str, _: int) -> float:
        return round(1e3 * median(seconds(passes[name]) for _ in range(REPEATS)), 2)

    times_ms = _common.in_rounds(tuple(passes), milliseconds, num_rounds, warm_up=1)
    over = {name: np.divide(own, times_ms["whole"]) for name, own in times_ms.items() if name != "whole"}
    return {"ms": times_ms, "over_whole": {name: _common.quartiles(own.tolist(), 3) for name, own in over.items()}}


def seconds(run: Pass) -> float:
    """Return how long a pass takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
