"""The machine in a series of demos: what anchors leave of its pace, and how lanes slow each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Final

from _common import quartiles, read_result

from calibrate.fitting.ratios import mean_pace
from calibrate.profiling.samples import Samples, load_samples
from hwprofiles.profile import load_profile
from mirrorsd.compare.runs import Run, load_runs, load_traces

LEAST_ANCHORS: Final = 4
"""Of a run, between the one before it and the one after: fewer make no two halves."""
WINDOW_S, NEXT_S, STEP_S = 8.0, 90.0, 5.0
SLOW: Final = 1.5
"""Both lanes take more than so many times their time alone: between cores of their own (1) and threads of one (2)."""


def machine(folders: Sequence[Path]) -> dict[str, Any]:
    """Figures of all demos in these folders together.

    `pace_error` is what anchors leave of a run's pace, the median without its sign: `in_between` those that were taken
    in the run, `before_and_after` the two around it. `at_once` is of anchors on two lanes at the same time: how many of
    the calibrations' took more than `SLOW` times as long on both as alone, and how many times as long these and the
    others took. `pace_of_seconds` is the standard deviation of the logarithm of a lane's pace in `WINDOW_S` seconds
    over that in the `NEXT_S` seconds after them.
    """
    changes = [change for folder in folders for change in pace_changes(folder)]
    errors = [error for folder in folders for taken in run_anchors(folder) for error in pace_errors(taken)]
    both = [pair for folder in folders for pair in slowdowns(_samples(folder))]
    slow, fast = ([pair for pair in both if (min(pair) > SLOW) == is_slow] for is_slow in (True, False))
    return {
        "pace_error": {
            "in_between": _median_size(inner for inner, _ in errors),
            "before_and_after": _median_size(outer for _, outer in errors),
            "of": len(errors),
        },
        "pace_of_seconds": {"spread": stdev(changes) if len(changes) > 1 else None, "of": len(changes)},
        "at_once": {
            "slow": len(slow),
            "of": len(both),
            "slowdown": {"slow": _quartiles_of(slow), "others": _quartiles_of(fast)},
        },
    }


def pace_errors(taken: Sequence[float]) -> Iterator[tuple[float, float]]:
    """By how much anchors in a run, and those around it, are off the run's pace; nothing where they are too few.

    Those in it are halved, every second one to either half: both halves tell the same pace, and their mean is off by
    half of what lies between them. Those around it are compared with all in it. As logarithms of ratios.

    Args:
        taken: seconds on one lane in the order of time: before the run, in it, after it.
    """
    first, *inner, last = taken
    if len(inner) >= LEAST_ANCHORS:
        yield log(fmean(inner[::2]) / fmean(inner[1::2])) / 2, log((first + last) / 2 / fmean(inner))


def pace_changes(folder: Path) -> Iterator[float]:
    """Yield the log of a lane's pace in some seconds of a demo over that in the next ones, every `STEP_S` seconds.

    Anchors of a run are taken to lie evenly in it.
    """
    lanes = defaultdict[str, list[tuple[float, float]]](list)
    for run in _runs(folder):
        for lane, taken in run.anchors.alone.items():
            apart_s = run.trace.decode_s / max(1, len(taken) - 1)
            lanes[lane] += [(run.at_s + place * apart_s, seconds) for place, seconds in enumerate(taken)]
    for timed in lanes.values():
        start_s, end_s = min(timed)[0], max(timed)[0] - WINDOW_S
        while (start_s := start_s + STEP_S) < end_s:
            middle_s = start_s + WINDOW_S
            seen = [seconds for at_s, seconds in timed if start_s <= at_s < middle_s]
            later = [seconds for at_s, seconds in timed if middle_s <= at_s < middle_s + NEXT_S]
            if min(len(seen), len(later)) >= LEAST_ANCHORS:
                yield log(mean_pace(seen) / mean_pace(later))


def slowdowns(samples: Samples) -> Iterator[tuple[float, float]]:
    """Of anchors on two lanes at once: each lane's time over that of its nearest anchor alone."""
    for one in samples.shared_anchors:
        first, second = (
            seconds / _nearest(samples, lane, one.at_s) for lane, seconds in zip(one.lanes, one.seconds, strict=True)
        )
        yield first, second


def run_anchors(folder: Path) -> Iterator[Sequence[float]]:
    """Of every lane in every run: its anchors alone, in the order of time."""
    for run in _runs(folder):
        yield from run.anchors.alone.values()


def _runs(folder: Path) -> Iterator[Run]:
    files = read_result(folder / "demo.json")["files"]
    measured = load_runs(folder / files["runs"], load_traces(folder / files["traces"]))
    yield from (run for row in measured.runs for run in row)


def _samples(folder: Path) -> Samples:
    return load_samples(folder / (load_profile(folder / "profile.yaml").samples or ""))


def _nearest(samples: Samples, lane: str, at_s: float) -> float:
    return min((abs(one.at_s - at_s), one.seconds) for one in samples.anchors if one.lane == lane)[1]


def _median_size(errors: Iterator[float]) -> float | None:
    sizes = [abs(error) for error in errors]
    return median(sizes) if sizes else None


def _quartiles_of(pairs: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Of both lanes together; None of no pair."""
    return quartiles([one for pair in pairs for one in pair]) if pairs else None
