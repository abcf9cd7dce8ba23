"""Compares the times of operations in decoded runs with the times by a profile.

Each run has anchors of its lanes around it, and is compared at their speed. The first round of a run is left out, since
on lanes of OpenVINO the prompt's calls leave the target's graph in another memory layout
(`runtime.backends.openvino.buckets`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np

from calibrate.fitting.ratios import AnchorRatio, among
from calibrate.profiling.anchors import RunAnchors
from calibrate.profiling.samples import CalibrationRun, RunSpan
from costs.prices import Prices
from costs.round_plan import DRAFT_WORK, TARGET_WORK
from decoding.schedule import Schedule
from decoding.trace import Span, Work
from hwprofiles.profile import Profile

_LEAST_FIRST = 0.1
"""Least ratio of a first step's time to a step's, since ratios must be positive."""


class TimedSpan(NamedTuple):
    """A span of a run with its times by the profile.

    Attributes:
        alone_s: seconds by the profile if the other lane were idle.
        expected_s: seconds by the profile, with the slowdown by the other lane.
        is_start: whether it is a first step, as in `costs.prices`.
    """

    span: Span
    alone_s: float
    expected_s: float
    is_start: bool

    @property
    def seconds(self) -> float:
        """Measured seconds."""
        return self.span.end_s - self.span.start_s


def timed_spans(run: CalibrationRun, lane: str, works: Collection[Work], profile: Profile) -> list[TimedSpan]:
    """Return a run's spans of some kinds of work on a lane, in trace order; raises as `Prices.operation_s`."""
    spans = [one for one in run.spans if one.span.lane == lane and one.span.work in works]
    if not spans:
        return []
    factor = slowdowns_in(run.anchors, run.schedule, profile)[0 if lane == run.schedule.target_lane else 1]
    return [
        TimedSpan(span, alone_s, alone_s / (1 - shared + shared / factor), is_start)
        for (span, _, is_start, shared), alone_s in zip(spans, _alone_s(run, spans, profile), strict=True)
    ]


def _alone_s(run: CalibrationRun, spans: Sequence[RunSpan], profile: Profile) -> list[float]:
    """Return each span's seconds by the profile if the other lane were idle; equal operations are priced together."""
    alike = defaultdict[tuple[Work, int, bool], list[int]](list)
    for place, (span, _, is_start, _) in enumerate(spans):
        alike[span.work, span.rows, is_start].append(place)
    at = np.array([one.context for one in spans], dtype=np.float64)
    prices, seconds = Prices(profile), np.empty(len(spans))
    for (work, rows, is_start), places in alike.items():
        seconds[places] = prices.operation_s(run.schedule, work, rows, at[places], is_start=is_start)
    return seconds.tolist()


def level(run: CalibrationRun, lane: str, works: Collection[Work], profile: Profile) -> AnchorRatio | None:
    """Return the measured over the expected time of some work in a run, at its anchors' speed; None without it."""
    return _level_of(timed_spans(run, lane, works, profile), run, lane, profile)


def levels_by_lane(
    runs: Sequence[CalibrationRun], works: Collection[Work], profile: Profile
) -> dict[str, list[AnchorRatio]]:
    """Return by lane the `level` of each run that has such work on it."""
    found = {lane.name: [level(run, lane.name, works, profile) for run in runs] for lane in profile.lanes}
    return {name: [ratio for ratio in ratios if ratio is not None] for name, ratios in found.items()}


def _level_of(timed: Sequence[TimedSpan], run: CalibrationRun, lane: str, profile: Profile) -> AnchorRatio | None:
    if not (expected_s := sum(one.expected_s for one in timed)):
        return None
    seconds, anchor = sum(one.seconds for one in timed), profile.lane(lane).anchor
    assert anchor is not None, "a calibration without anchors"
    return among(seconds, run.anchors.alone[lane]).over(expected_s / anchor.seconds)


def first_step(run: CalibrationRun, lane: str, profile: Profile, step_s: float) -> AnchorRatio | None:
    """Return 1 + (extra time of the first steps of a run's rollouts / `step_s`), at the speed of the later steps.

    First and later steps are compared with the profile, so their rows may differ. None without first or later steps.
    """
    steps = timed_spans(run, lane, (Work.ROLLOUT_STEP,), profile)
    first, later = ([one for one in steps if one.is_start == is_first] for is_first in (True, False))
    if not first or not later:
        return None
    pace = sum(one.seconds for one in later) / sum(one.expected_s for one in later)
    more_s = fmean(one.seconds / pace - one.expected_s for one in first)
    return AnchorRatio(max(_LEAST_FIRST, 1 + more_s / step_s), among(step_s, run.anchors.alone[lane]).doubt)


def compare_run(run: CalibrationRun, profile: Profile) -> tuple[AnchorRatio, dict[str, float]] | None:
    """Return the `level` of all work of a run, and shares of its expected time by role and lane (`target cpu0`).

    None for a run of a single round, and for streams that the profile leaves out.
    """
    schedule = run.schedule
    if schedule.traits.drafts_itself and schedule.drafter not in profile.lane(schedule.target_lane).streams:
        return None
    roles = [("target", schedule.target_lane, TARGET_WORK)]
    if schedule.draft_lane is not None:
        roles.append(("draft", schedule.draft_lane, DRAFT_WORK))
    parts = dict[str, tuple[AnchorRatio, float]]()
    for role, lane, works in roles:
        timed = timed_spans(run, lane, works, profile)
        if (found := _level_of(timed, run, lane, profile)) is not None:
            parts[f"{role} {lane}"] = found, sum(one.expected_s for one in timed)
    if not parts:
        return None
    total_s = sum(seconds for _, seconds in parts.values())
    value, doubt = (sum(ratio[place] * s for ratio, s in parts.values()) / total_s for place in (0, 1))
    return AnchorRatio(value, doubt), {name: seconds / total_s for name, (_, seconds) in parts.items()}


def compare_runs(
    runs: Iterable[CalibrationRun], profile: Profile
) -> dict[Schedule, list[tuple[AnchorRatio, dict[str, float]]]]:
    """Return `compare_run` of all runs by schedule; runs without a result are left out."""
    found = defaultdict[Schedule, list[tuple[AnchorRatio, dict[str, float]]]](list)
    for run in runs:
        compared = compare_run(run, profile)
        if compared is not None:
            found[run.schedule].append(compared)
    return found


def gaps_s(run: CalibrationRun) -> list[float]:
    """Return the times between consecutive verifications of a run of plain decoding."""
    spans = [span for span in run.trace.spans if span.work in TARGET_WORK and span.round > 0]
    return [after.start_s - before.end_s for before, after in pairwise(spans)]


def exit_gaps_s(run: CalibrationRun) -> list[float]:
    """Return the times between each prefix and its suffix."""
    spans = [span for span in run.trace.spans if span.work in (Work.PREFIX, Work.SUFFIX) and span.round > 0]
    return [after.start_s - before.end_s for before, after in pairwise(spans) if after.work is Work.SUFFIX]


def slowdowns_in(anchors: RunAnchors, schedule: Schedule, profile: Profile) -> tuple[float, float]:
    """Return the slowdowns (target's, draft's) in a run: the profile's, times the change that its anchors show."""
    pair = schedule.target_lane, schedule.draft_lane or schedule.target_lane
    known, now, then = profile.slowdown(*pair), anchors.slowdown(schedule), profile.anchor_slowdown(*pair)
    if now is None or then is None:
        return known
    return known[0] * now[0] / then[0], known[1] * now[1] / then[1]
