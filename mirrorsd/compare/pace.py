"""The machine's pace during a run: how long known work took around it, over how long the profile says it takes.

A pace of 1.3 is a machine that takes 1.3 times as long for everything as it did when it was calibrated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from mirrorsd.compare.runs import Run, SpeedSample, Work
from mirrorsd.compare.speed_probe import anchor_context, lanes_of, num_plain_tokens, probe_prompt
from sim.evaluator import predict
from sim.prediction import Prediction

Expected = Mapping[tuple[Work, str], float]
"""Seconds of one step of known work on a lane."""


def expected_steps(profile: Profile, record: AcceptanceRecord) -> Expected:
    """What the profile says of all work that a probe of this record does, on every lane that has a target.

    Raises:
        OutOfRangeError: the profile's contexts are not those of the record.
    """
    context = anchor_context(profile, record)
    alone = replace(record, prompts=(probe_prompt(record),))
    expected: dict[tuple[Work, str], float] = {}
    for lane in profile.lanes:
        if lane.layer is not None:
            has_anchor = lane.anchor is not None and lane.anchor.context == context
            one_row_s = lane.verify_s(profile.num_layers, 1, context)
            expected["anchor", lane.name] = lane.anchor.seconds if lane.anchor and has_anchor else one_row_s
            plain = Schedule(method="autoregressive", target_lane=lane.name)
            found = predict(plain, profile, alone, max_new_tokens=num_plain_tokens(record))
            expected["plain", lane.name] = found.tpot_s
    return expected


def pace(run: Run, schedule: Schedule, prediction: Prediction, expected: Expected) -> float:
    """The pace during a run: that of its lanes, each weighted by its share of the predicted work.

    1 where nothing was timed around the run.
    """
    target_s, draft_s = prediction.target_busy_s, prediction.hidden_draft_s + prediction.exposed_draft_s
    lanes = lanes_of(schedule)
    weights = (target_s, draft_s) if len(lanes) == 2 else (1.0,)
    paces = [_lane_pace(run.around, lane, expected) for lane in lanes]
    known = [(one, weight) for one, weight in zip(paces, weights, strict=True) if one is not None]
    total = sum(weight for _, weight in known)
    return sum(one * weight for one, weight in known) / total if total else 1.0


def _lane_pace(around: Sequence[SpeedSample], lane: str, expected: Expected) -> float | None:
    """Mean time of a lane's known work over what it should take; None if there was none."""
    samples = [sample for sample in around if sample.lane == lane]
    expected_s = sum(expected[sample.work, lane] for sample in samples)
    return sum(sample.seconds for sample in samples) / expected_s if samples else None
