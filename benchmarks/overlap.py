"""Whether two lanes work at the same time.

    python benchmarks/overlap.py
    python benchmarks/overlap.py --dtype int8 --out benchmarks/results/overlap-int8.json

A target and a draft on a core each are given as much work of their own as fills the same time, alone and side by side
in turns: `overlap_efficiency` = (T_target + T_draft - T_parallel) / min(T_target, T_draft); next to it stands that of
cores that do nothing but read memory, which lanes come close to that do little else. Writes
benchmarks/results/overlap.json, or `--out`. Needs quiet cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, get_args

import torch
from _common import EMBEDDED, RESULTS, arguments, facts, quartiles, write_result

from mirrorsd.lane_choice import device_lanes
from mirrorsd.model_pair import Dtype, find_pair
from mirrorsd.text_engine import new_engine
from runtime.lanes.lane import Lane
from runtime.wire.measurement import Measurement
from runtime.worker.timing import MeasureRole

VERIFY = Measurement(part="verify", rows=4, context=128)
STEP = Measurement(part="draft_step", rows=8, context=128)

Work = Callable[[], Callable[[], object]]
"""Starts some work; what it returns waits for the end."""


def main() -> None:
    """Measure and write the result file."""
    parser = arguments(__doc__, out=RESULTS / "overlap.json", turns=9, seconds=1.5)
    parser.add_argument("--dtype", choices=get_args(Dtype), default="bfloat16", help="form of the weights")
    options = parser.parse_args()
    pair = find_pair(EMBEDDED, dtype=options.dtype)
    lanes = [lane for lane in device_lanes("openvino:CPU", options.dtype) if len(lane.cores) == 1][:2]
    with new_engine(pair, lanes) as engine:
        both = [(engine.load_target(lanes[0].name), VERIFY), (engine.load_draft(lanes[1].name), STEP)]
        filling = [(lane, _filling(lane, measurement, options.seconds)) for lane, measurement in both]
        overlap = _overlap([partial(_measuring, *one) for one in filling], options.turns)
    overlap["readers"] = readers([lane.cores[0] for lane in lanes], turns=options.turns)
    content = facts(pair) | {"dtype": options.dtype, "lanes": [lane.name for lane in lanes], "overlap": overlap}
    write_result(options.out, content)
    print(options.out.read_text(encoding="utf-8"))


def _measuring(lane: Lane, measurement: Measurement) -> Callable[[], object]:
    return lane.request(MeasureRole.measure, measurement).result


def _filling(lane: Lane, measurement: Measurement, seconds: float) -> Measurement:
    """Return a measurement repeated so often that it takes `seconds`."""
    once_s = median(lane.measure(Measurement(part=measurement.part, rows=measurement.rows, context=128, repeats=20)))
    return replace(measurement, repeats=max(1, round(seconds / once_s)))


def _overlap(works: Sequence[Work], turns: int) -> dict[str, Any]:
    """Return the times of two works alone and side by side, in turns, and their overlap."""
    rows = [(_wall_s(works[:1]), _wall_s(works[1:]), _wall_s(works)) for _ in range(turns)]
    medians = dict(zip(("target_s", "draft_s", "parallel_s"), map(median, zip(*rows, strict=True)), strict=True))
    each = [overlap_efficiency(*row) for row in rows]
    return medians | {"turns": turns, "overlap_efficiency": quartiles(each)}


def overlap_efficiency(target_s: float, draft_s: float, parallel_s: float) -> float:
    """Return (T_target + T_draft - T_parallel) / min(T_target, T_draft): 1 is perfect overlap, 0 none at all."""
    return (target_s + draft_s - parallel_s) / min(target_s, draft_s)


def _wall_s(works: Sequence[Work]) -> float:
    start_s = time.perf_counter()
    for wait in [start() for start in works]:
        wait()
    return time.perf_counter() - start_s


_NUM_BYTES = 256_000_000
"""More than any cache of a CPU holds."""


def readers(cores: Sequence[int], *, turns: int, repeats: int = 40) -> dict[str, Any]:
    """Return bytes per second of two cores that read memory, each alone and both, and their `overlap_efficiency`."""
    works, processes = list[Work](), []
    for core in cores:
        here, there = get_context("spawn").Pipe()
        processes.append(get_context("spawn").Process(target=_read, args=(there, core, repeats), daemon=True))
        processes[-1].start()
        here.recv()
        works.append(partial(_reading, here))
    found = _overlap(works, turns)
    for process in processes:
        process.terminate()
        process.join()
    read = repeats * _NUM_BYTES
    return {
        "alone_bytes_per_s": [read / found["target_s"], read / found["draft_s"]],
        "together_bytes_per_s": 2 * read / found["parallel_s"],
        "overlap_efficiency": found["overlap_efficiency"]["median"],
    }


def _reading(end: Connection) -> Callable[[], object]:
    end.send(None)
    return end.recv


def _read(end: Connection, core: int, repeats: int) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    memory = torch.ones(_NUM_BYTES // 4)
    end.send(None)
    while True:
        end.recv()
        for _ in range(repeats):
            memory.sum()
        end.send(None)


if __name__ == "__main__":
    main()
