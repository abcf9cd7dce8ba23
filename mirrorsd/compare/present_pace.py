"""Finds how fast a machine is just before runs, so that predictions of them are for that speed, not the calibration's.

A shared machine keeps a speed for minutes, and has another one the next day. `benchmarks/held_out.py` says by how much
predictions at the present pace are better.
"""

from collections.abc import Collection, Mapping, Sequence
from math import exp, log
from statistics import fmean, variance
from typing import TYPE_CHECKING, Final

from calibrate.fitting.ratios import NORMAL_90, limited
from calibrate.profiling.anchors import lanes_of
from decoding.errors import LaneError, MemoryFitError
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from mirrorsd.compare.runs import expected_anchors
from planner.wording import factor

if TYPE_CHECKING:  # a report is made without the libraries that lanes need
    from calibrate.profiling.anchors import Anchors
    from runtime.engine import Engine

_MOST_S: Final = 8.0
_SHARE: Final = 0.05
"""Of the time of the runs that anchors before them take, at most."""
_LEAST: Final = 3
"""Least anchors on each lane."""
_OF_SECONDS: Final = 0.05
"""Relative standard deviation of a lane's pace in eight seconds from that in the ninety seconds after them
(`pace_of_seconds` of benchmarks/demos.py): 0.048 in the five demos of the morning of 30 November 2026, of which commit
319938ab has the data, and 0.032 in those of that evening. The scatter of few anchors adds to it."""
_CHANGED: Final = 0.1
"""Relative changes of a lane's speed beyond this are told."""


def paces_now(
    engine: "Engine", anchors: "Anchors", schedules: Collection[Schedule], profile: Profile, *, runs_s: float
) -> dict[str, float]:
    """Return each lane's pace: the expected time of its work in the next minutes over that during calibration.

    Anchors take a share of `runs_s`, the expected time of the runs, and 8 seconds at most, once the target is loaded. A
    lane that only drafts and cannot load the target is left out. Raises `LaneError` if a lane is lost, and what loading
    raises on a lane of the target.
    """
    targets, taken = {one.target_lane for one in schedules}, dict[str, list[float]]()
    for lane in sorted({lane for one in schedules for lane in lanes_of(one)}):
        try:
            engine.load_target(lane)
            engine.compile_target(lane, exit_layer=None, drafters=())
            taken[lane] = []
        except (LaneError, MemoryFitError):
            if lane in targets:
                raise
    end_s = anchors.now_s + min(_MOST_S, _SHARE * runs_s)
    while anchors.now_s < end_s or any(len(times) < _LEAST for times in taken.values()):
        for lane, times in taken.items():
            times.append(anchors.take(lane))
    expected = expected_anchors(profile)
    return {
        lane: lasting_pace([one / expected[lane] for one in times], profile.pace_error) for lane, times in taken.items()
    }


def lasting_pace(seen: Sequence[float], pace_error: float) -> float:
    """Return the expected pace of minutes, given anchors of seconds: nearer to 1, as the latter may be by chance.

    It is the posterior mean of the logarithm. The prior's half-width (90 %) is `pace_error`, or wider if the pace that
    was seen is further away, as it is on another day.
    """
    seen = limited(seen)
    pace = fmean(seen)
    change, noise = log(pace), _OF_SECONDS**2 + variance(seen) / pace**2 / len(seen)
    prior = max((pace_error / NORMAL_90) ** 2, change**2 - noise)
    return exp(change * prior / (prior + noise))


def paces_in_words(paces: Mapping[str, float]) -> str | None:
    """Return a sentence on lanes whose speed changed much since calibration; None if there are none."""
    changed = [f"{lane} {factor(1 / pace)}" for lane, pace in paces.items() if abs(1 / pace - 1) > _CHANGED]
    if not changed:
        return None
    return (
        "Just before the runs lanes had other speeds than during calibration, by the same work timed in both: "
        f"{', '.join(changed)}. Predicted times in the table are for these speeds."
    )
