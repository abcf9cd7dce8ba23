"""Demos kept with their profiles, records and real runs: what the simulator says of them now."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile, load_profile
from mirrorsd.compare.runs import load_runs, load_traces
from sim.evaluator import Evaluator
from sim.world import simulate

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
NAMES = sorted((path.name for path in (RESULTS / "demos").iterdir()), key=int)


class Demo(NamedTuple):
    """What a demo was run with: its schedules by name, and the texts that each has run, cut as they were."""

    profile: Profile
    schedules: dict[str, Schedule]
    texts: list[AcceptanceRecord]

    @classmethod
    @cache
    def load(cls, name: str) -> Demo:
        """One of the committed ones."""
        folder = RESULTS / "demos" / name
        result = json.loads((folder / "demo.json").read_text(encoding="utf-8"))
        measured = load_runs(folder / "runs.json.gz", load_traces(folder / "traces.json.gz"))
        texts = measured.texts(AcceptanceRecord.load(folder / "record.npz"))
        return cls(
            load_profile(folder / "profile.yaml").at_paces(result.get("paces", {})),
            {row["name"]: Schedule(**row["schedule"]) for row in result["schedules"]},
            [replace(texts, prompts=texts.prompts[: len(runs)]) for runs in measured.runs],
        )


@pytest.fixture(scope="module")
def summary():
    content: dict[str, Any] = json.loads((RESULTS / "demos.json").read_text(encoding="utf-8"))
    return content["demos"]


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_has_todays_predictions_of_every_demo(name, summary):
    """Whoever changes what a prediction is writes the summary again, and sees there what it did to the errors."""
    demo = Demo.load(name)
    today = {
        called: Evaluator(demo.profile, texts).predict(schedule).tpot_s
        for (called, schedule), texts in zip(demo.schedules.items(), demo.texts, strict=True)
    }
    assert today == pytest.approx(summary[name]["recomputed"]["predicted_tpot_s"], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_events_say_of_every_text_what_arrays_say(name):
    demo = Demo.load(name)
    for schedule, texts in zip(demo.schedules.values(), demo.texts, strict=True):
        played = simulate(schedule, demo.profile, texts, trace=False)
        told = Evaluator(demo.profile, texts).predict(schedule)
        assert [trace.decode_s for trace in played] == pytest.approx(told.prompt_decode_s, abs=1e-9)
        assert sum(len(trace.rounds) for trace in played) == told.num_rounds
