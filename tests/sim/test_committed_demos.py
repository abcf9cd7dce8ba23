"""Demos kept with their profiles, records and real runs: what the simulator says of them now."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile, load_profile
from sim.evaluator import Evaluator, predict
from sim.world import simulate

DEMOS = Path(__file__).parents[2] / "benchmarks" / "results"
NAMES = sorted(f"{kind}/{path.name}" for kind in ("demos",) for path in (DEMOS / kind).iterdir())


class Demo(NamedTuple):
    """What a demo was run with, and its schedules as the result has them."""

    profile: Profile
    texts: AcceptanceRecord
    rows: list[dict[str, Any]]

    @classmethod
    @cache
    def load(cls, name: str) -> Demo:
        """One of the committed ones."""
        return cls(
            load_profile(DEMOS / name / "profile.yaml"),
            AcceptanceRecord.load(DEMOS / name / "record.npz"),
            json.loads((DEMOS / name / "demo.json").read_text(encoding="utf-8"))["schedules"],
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_prediction_that_a_demo_keeps_and_its_error_come_out_again(name: str) -> None:
    """Who changes what a prediction is works the committed ones out again, and sees there what it did to the errors."""
    profile, texts, rows = Demo.load(name)
    evaluator = Evaluator(profile, texts)
    for row in rows:
        tpot_s = evaluator.predict(Schedule(**row["schedule"])).tpot_s
        assert tpot_s == pytest.approx(row["predicted"]["tpot_s"], rel=1e-9), row["schedule"]
        error = tpot_s / row["measured"]["tpot_s_at_anchor"] - 1
        assert error == pytest.approx(row["tpot_error_at_anchor"], abs=1e-9), row["schedule"]


@pytest.mark.parametrize("name", NAMES)
def test_events_say_of_every_text_what_arrays_say(name: str) -> None:
    profile, texts, rows = Demo.load(name)
    for row in rows:
        schedule = Schedule(**row["schedule"])
        played = simulate(schedule, profile, texts, trace=False)
        told = predict(schedule, profile, texts)
        assert [trace.decode_s for trace in played] == pytest.approx(told.prompt_decode_s, abs=1e-9)
        assert sum(len(trace.rounds) for trace in played) == row["predicted"]["num_rounds"]
