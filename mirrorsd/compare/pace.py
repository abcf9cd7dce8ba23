"""The machine's pace during a run: how long its anchors took, over how long they took when it was calibrated.

A pace of 1.3 is a machine that takes 1.3 times as long for everything as it did then.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

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
    """Seconds of an anchor by the profile, on every lane that has a target.

    Raises:
        OutOfRangeError: a lane has no anchor, and was not measured with such a context.
    """
    return {lane.name: _anchor_s(lane, profile) for lane in profile.lanes if lane.layer is not None}


def pace(run: Run, schedule: Schedule, prediction: Prediction, expected: Mapping[str, float]) -> float:
    """The pace during a run: that of its lanes, each weighted by its share of the predicted work.

    `expected` is what `expected_anchors` gives. 1 where no anchor was taken.
    """
    target_s, draft_s = prediction.target_busy_s, prediction.hidden_draft_s + prediction.exposed_draft_s
    lanes = lanes_of(schedule)
    weights = dict(zip(lanes, (target_s, draft_s) if len(lanes) == 2 else (1.0,), strict=True))
    paces = {lane: fmean(taken) / expected[lane] for lane, taken in run.anchors.items() if lane in weights and taken}
    total = sum(weights[lane] for lane in paces)
    return sum(one * weights[lane] for lane, one in paces.items()) / total if total else 1.0


def lanes_of(schedule: Schedule) -> tuple[str, ...]:
    """Lanes that a schedule uses, the target's first."""
    return tuple(dict.fromkeys((schedule.target_lane, schedule.draft_lane or schedule.target_lane)))


def _anchor_s(lane: LaneProfile, profile: Profile) -> float:
    context = anchor_context(profile)
    if lane.anchor is not None and lane.anchor.context == context:
        return lane.anchor.seconds
    return lane.verify_s(profile.num_layers, 1, context)
