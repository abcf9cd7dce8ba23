"""The machine's pace during a run: how long its anchors took, over how long they took when it was calibrated.

A pace of 1.3 is a machine that takes 1.3 times as long for everything as it did then.
"""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.fitting.ratios import mean_pace
from decoding.schedule import Schedule
from hwprofiles.profile import LaneProfile, Profile
from mirrorsd.compare.runs import Run
from sim.prediction import Prediction

LEAST_CONTEXT = 64
"""Cached tokens of anchors on lanes that were calibrated before there were any."""


def anchor_context(profile: Profile) -> int:
    """Cached tokens of an anchor, as calibration had it."""
    return next((lane.anchor.context for lane in profile.lanes if lane.anchor is not None), LEAST_CONTEXT)


def expected_anchors(profile: Profile) -> dict[str, float]:
    """Return seconds of an anchor by the profile, on every lane that has a target.

    Raises:
        OutOfRangeError: a lane has no anchor, and was not measured with such a context.
    """
    return {lane.name: _anchor_s(lane, profile) for lane in profile.lanes if lane.layer is not None}


def pace(run: Run, schedule: Schedule, prediction: Prediction, profile: Profile) -> float:
    """The pace during a run, 1 without anchors: that of its lanes, or both at once, by the time it waits for each."""
    target, draft = schedule.target_lane, schedule.draft_lane or schedule.target_lane
    alone, expected = run.anchors.alone, expected_anchors(profile)
    overlap_s = min(prediction.hidden_draft_s, prediction.target_busy_s)
    parts = [(_pace(alone.get(target, ()), expected[target]), prediction.target_busy_s)]
    parts.append((_draft_pace(run, draft, expected[draft], profile), prediction.exposed_draft_s))
    then = profile.anchor_slowdown(target, draft)
    if run.anchors.shared and then is not None:
        at_once = _pace([first for first, _ in run.anchors.shared], expected[target] * then[0])
        parts[0] = parts[0][0], prediction.target_busy_s - overlap_s
        parts.append((at_once, overlap_s))
    known = [(one, weight) for one, weight in parts if one is not None]
    total = sum(weight for _, weight in known)
    return sum(one * weight for one, weight in known) / total if total else 1.0


def _draft_pace(run: Run, lane: str, anchor_s: float, profile: Profile) -> float | None:
    """That of the draft model's own anchors where there are any; of the target's on its lane elsewhere."""
    own = profile.lane(lane).step_anchor
    if own is not None and run.anchors.steps:
        return _pace(run.anchors.steps, own.seconds)
    return _pace(run.anchors.alone.get(lane, ()), anchor_s)


def _pace(taken: Sequence[float], expected_s: float) -> float | None:
    return mean_pace(taken) / expected_s if taken else None


def _anchor_s(lane: LaneProfile, profile: Profile) -> float:
    context = anchor_context(profile)
    if lane.anchor is not None and lane.anchor.context == context:
        return lane.anchor.seconds
    return lane.verify_s(profile.num_layers, 1, context)
