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
from typing import Any

import pytest

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import load_profile
from sim.evaluator import Evaluator

DEMOS = Path(__file__).parents[2] / "benchmarks" / "results" / "demos"
NAMES = sorted(path.name for path in DEMOS.iterdir())


@cache
def demo(name: str) -> list[tuple[Schedule, float, dict[str, Any]]]:
    """Every schedule of a demo with its time per token as predicted now, and its row."""
    evaluator = Evaluator(
        load_profile(DEMOS / name / "profile.yaml"), AcceptanceRecord.load(DEMOS / name / "record.npz")
    )
    rows = json.loads((DEMOS / name / "demo.json").read_text(encoding="utf-8"))["schedules"]
    schedules = [Schedule(**row["schedule"]) for row in rows]
    return [(schedule, evaluator.predict(schedule).tpot_s, row) for schedule, row in zip(schedules, rows, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_where_nothing_crosses_predictions_are_those_of_the_demo(name: str) -> None:
    found = [one for one in demo(name) if one[0].draft_lane in (None, one[0].target_lane)]
    assert found
    for schedule, tpot_s, row in found:
        assert tpot_s == pytest.approx(row["predicted"]["tpot_s"], rel=1e-9), schedule


@pytest.mark.parametrize("name", NAMES)
def test_messages_over_measured_links_change_no_prediction_by_half_a_percent(name: str) -> None:
    found = [one for one in demo(name) if one[0].draft_lane not in (None, one[0].target_lane)]
    assert found
    for schedule, tpot_s, row in found:
        assert row["predicted"]["tpot_s"] == pytest.approx(tpot_s, rel=0.005), schedule


def test_predictions_over_links_are_nearer_to_the_real_runs_than_they_were() -> None:
    rows = [one for name in NAMES for one in demo(name)]
    now = fmean(abs(tpot_s / row["measured"]["tpot_s_at_anchor"] - 1) for _, tpot_s, row in rows)
    then = fmean(abs(row["predicted"]["tpot_s"] / row["measured"]["tpot_s_at_anchor"] - 1) for _, _, row in rows)
    assert now <= then * (1 + 1e-9)
