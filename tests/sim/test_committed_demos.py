"""Demos kept with their profiles, records and real runs: what the simulator says of them now.

A measured `dispatch_s` holds the way of a message without arrays, a measured link what arrays cost beyond that. So
windows and verdicts, which are no arrays in the runtime, pay the latency of a measured link once too often: tens of
microseconds of a round of tens of milliseconds, far less than what the real runs can tell.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import load_profile
from sim.evaluator import Evaluator

DEMOS = Path(__file__).parents[2] / "benchmarks" / "results" / "demos"
NAMES = sorted(path.name for path in DEMOS.iterdir())


class Told(NamedTuple):
    """Seconds per token of one schedule of a demo: with its links, as if nothing crossed, and in the real run."""

    schedule: Schedule
    tpot_s: float
    without_links_s: float
    measured_s: float


@cache
def demo(name: str) -> list[Told]:
    """Every schedule of a demo."""
    profile, texts = load_profile(DEMOS / name / "profile.yaml"), AcceptanceRecord.load(DEMOS / name / "record.npz")
    evaluators = [Evaluator(one, texts) for one in (profile, profile.model_copy(update={"links": ()}))]
    rows = json.loads((DEMOS / name / "demo.json").read_text(encoding="utf-8"))["schedules"]
    schedules = [Schedule(**row["schedule"]) for row in rows]
    return [
        Told(schedule, *(one.predict(schedule).tpot_s for one in evaluators), row["measured"]["tpot_s_at_anchor"])
        for schedule, row in zip(schedules, rows, strict=True)
    ]


def is_split(schedule: Schedule) -> bool:
    return schedule.draft_lane not in (None, schedule.target_lane)


@pytest.mark.parametrize("name", NAMES)
def test_within_a_lane_nothing_crosses(name: str) -> None:
    found = [one for one in demo(name) if not is_split(one.schedule)]
    assert found
    assert all(one.tpot_s == one.without_links_s for one in found)


@pytest.mark.parametrize("name", NAMES)
def test_messages_over_measured_links_change_no_prediction_by_half_a_percent(name: str) -> None:
    found = [one for one in demo(name) if is_split(one.schedule)]
    assert found
    assert all(one.without_links_s < one.tpot_s < 1.005 * one.without_links_s for one in found)


def test_predictions_with_links_are_not_worse() -> None:
    found = [one for name in NAMES for one in demo(name) if is_split(one.schedule)]
    with_links = fmean(abs(one.tpot_s / one.measured_s - 1) for one in found)
    without = fmean(abs(one.without_links_s / one.measured_s - 1) for one in found)
    assert with_links < without + 0.001
