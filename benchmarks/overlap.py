"""Whether two lanes work at the same time, and what mirror gains from it over the synchronous method.

    python benchmarks/overlap.py
    python benchmarks/overlap.py --folder FOLDER --out benchmarks/results/overlap-int8.json

First both lanes are given as much work of their own as fills the same time, alone and side by side in turns:
`overlap_efficiency` = (T_target + T_draft - T_parallel) / min(T_target, T_draft); next to it stands that of cores that
do nothing but read memory, which lanes come close to that do little else. Then the schedules predicted fastest
on these very lanes, one `speculative` and one `mirror`, decode a demo's prompts in turns. Writes
benchmarks/results/overlap.json, or `--out`. Needs quiet cores, and a run of `mirrorsd demo` for its profile and record.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final, cast

import torch
from _common import EMBEDDED, RESULTS, arguments, facts, quartiles, write_result

from calibrate.profiling.anchors import Anchors
from calibrate.prompts import bundled_prompts
from decoding.metrics import overlap_efficiency, tpot_s
from decoding.record import AcceptanceRecord
from decoding.trace import Trace
from hwprofiles.profile import Profile, load_profile
from mirrorsd.compare.run_in_turn import anchors_of, run_in_turn
from mirrorsd.compare.validate_pair import matching_prompts
from mirrorsd.lane_choice import profile_lanes
from mirrorsd.model_pair import Dtype, find_pair
from mirrorsd.prompt_tokens import encode
from mirrorsd.text_engine import new_engine
from planner.search.search import Candidate, search
from planner.search.space import SearchSpace
from runtime.engine import Engine
from runtime.lanes.lane import Lane
from runtime.wire.measurement import Measurement
from runtime.worker.timing import MeasureRole

RESULT = RESULTS / "overlap.json"
METHODS: Final = ("speculative", "mirror")
VERIFY = Measurement(part="verify", rows=4, context=128)
STEP = Measurement(part="draft_step", rows=8, context=128)


def main() -> None:
    """Measure and write the result file."""
    folder = (Path("out/demo"), "of a demo run on this machine")
    parser = arguments(__doc__, out=RESULT, folder=folder, turns=9, seconds=1.5)
    parser.add_argument("--lanes", nargs=2, default=("openvino:CPU@0", "openvino:CPU@1"), metavar=("TARGET", "DRAFT"))
    options = parser.parse_args()
    profile = load_profile(options.folder / "profile.yaml")
    record = AcceptanceRecord.load(options.folder / "record.npz")
    pair = find_pair(EMBEDDED, dtype=cast("Dtype", profile.dtype))
    prompts = matching_prompts(encode(bundled_prompts(), pair.target_folder), record)
    with new_engine(pair, profile_lanes(profile)) as engine:
        overlap = _overlap(engine, *options.lanes, turns=options.turns, seconds=options.seconds)
        overlap["readers"] = readers([profile.lane(name).cores[0] for name in options.lanes], turns=options.turns)
        print(json.dumps(overlap, indent=2), flush=True)
        anchors = anchors_of(engine, profile)
        schedules = best_on(options.lanes, profile, record)
        methods = _methods(engine, anchors, schedules, prompts, record.max_new_tokens)
        print(json.dumps(methods["mirror_over_speculative"], indent=2), flush=True)
    content = {
        **facts(pair, with_formats=True),
        "dtype": profile.dtype,
        "lanes": list(options.lanes),
        "overlap": overlap,
        "methods": methods,
    }
    write_result(options.out, content)


def _overlap(engine: Engine, target_name: str, draft_name: str, *, turns: int, seconds: float) -> dict[str, Any]:
    """Both lanes alone and side by side, `turns` times, each with about `seconds` of work."""
    target, draft = engine.load_target(target_name), engine.load_draft(draft_name)
    works = [(target, _filling(target, VERIFY, seconds)), (draft, _filling(draft, STEP, seconds))]
    found: dict[str, list[float]] = {"target_s": [], "draft_s": [], "parallel_s": []}
    for _ in range(turns):
        found["target_s"].append(_wall_s(works[:1]))
        found["draft_s"].append(_wall_s(works[1:]))
        found["parallel_s"].append(_wall_s(works))
    each = [overlap_efficiency(*row) for row in zip(*found.values(), strict=True)]
    medians = {name: median(values) for name, values in found.items()}
    return medians | {"turns": turns, "overlap_efficiency": quartiles(each)}


def _filling(lane: Lane, measurement: Measurement, seconds: float) -> Measurement:
    """A measurement repeated so often that it takes `seconds`."""
    once_s = median(lane.measure(Measurement(part=measurement.part, rows=measurement.rows, context=128, repeats=20)))
    return replace(measurement, repeats=max(1, round(seconds / once_s)))


def _wall_s(works: Sequence[tuple[Lane, Measurement]]) -> float:
    start_s = time.perf_counter()
    for reply in [lane.request(MeasureRole.measure, measurement) for lane, measurement in works]:
        reply.result()
    return time.perf_counter() - start_s


def best_on(lanes: Sequence[str], profile: Profile, record: AcceptanceRecord) -> dict[str, Candidate]:
    """The schedule of either method that is predicted fastest with target and draft on these lanes.

    Lanes are not equally fast, so methods on lanes of their own would be compared by their lanes.
    """
    space = SearchSpace(methods=METHODS, placements=("split",))
    found = search(space, profile, record).candidates
    here = [one for one in found if (one.schedule.target_lane, one.schedule.draft_lane) == tuple(lanes)]
    best = {method: next((one for one in here if one.schedule.method == method), None) for method in METHODS}
    missing = [method for method, candidate in best.items() if candidate is None]
    if missing:
        raise SystemExit(f"nothing is predicted on the lanes {' and '.join(lanes)}: {', '.join(missing)}")
    return {method: candidate for method, candidate in best.items() if candidate is not None}


def _methods(
    engine: Engine, anchors: Anchors, candidates: Mapping[str, Candidate], prompts: Sequence[Any], limit: int
) -> dict[str, Any]:
    schedules = [candidate.schedule for candidate in candidates.values()]
    measured = run_in_turn(engine, schedules, prompts, anchors, cuts=[limit] * len(prompts))
    traces = dict(zip(candidates, measured.traces, strict=True))
    ratios = [_ratio(*pair) for pair in zip(traces["speculative"], traces["mirror"], strict=True)]
    return {
        "num_prompts": measured.num_prompts,
        "mirror_over_speculative": quartiles(ratios) | {"of_all_prompts": _ratio(*traces.values())},
        "schedules": {
            name: one.schedule.model_dump(mode="json", exclude_defaults=True) for name, one in candidates.items()
        },
        "measured_tpot_s": {name: tpot_s(each) for name, each in traces.items()},
        "predicted_tpot_s": {name: candidate.tpot_s for name, candidate in candidates.items()},
    }


def _ratio(speculative: Trace | list[Trace], mirror: Trace | list[Trace]) -> float:
    """How many times faster mirror is."""
    slow, fast = ([one] if isinstance(one, Trace) else one for one in (speculative, mirror))
    return tpot_s(slow) / tpot_s(fast)


_NUM_BYTES = 256_000_000
"""More than any cache of a CPU holds."""


def readers(cores: Sequence[int], *, turns: int, repeats: int = 40) -> dict[str, Any]:
    """Two cores, each reading memory of its own, alone and side by side in turns.

    Returns:
        Bytes per second of each alone and of both, medians, and the `overlap_efficiency` of such readers.
    """
    ends, processes = [], []
    for core in cores:
        here, there = get_context("spawn").Pipe()
        processes.append(get_context("spawn").Process(target=_read, args=(there, core, repeats), daemon=True))
        processes[-1].start()
        here.recv()
        ends.append(here)
    rows = [(_wall_s(ends[:1]), _wall_s(ends[1:]), _wall_s(ends)) for _ in range(turns)]
    for process in processes:
        process.terminate()
        process.join()
    first_s, second_s, both_s = map(median, zip(*rows, strict=True))
    read = repeats * _NUM_BYTES
    return {
        "alone_bytes_per_s": [read / first_s, read / second_s],
        "together_bytes_per_s": 2 * read / both_s,
        "overlap_efficiency": median(overlap_efficiency(*row) for row in rows),
    }


def _wall_s(ends: Sequence[Connection]) -> float:
    start_s = time.perf_counter()
    for end in ends:
        end.send(None)
    for end in ends:
        end.recv()
    return time.perf_counter() - start_s


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
