"""A file that a run wrote is read, and its time stands beside what the plan predicts of that schedule."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape

from decoding.errors import ConfigError, PlanError
from mirrorsd.compare.numbers import schedule_entry
from mirrorsd.pair_on_platform import beside_measured, plan_pair
from mirrorsd.plan_entry import measured_entries
from planner.platform_plan import measured_run
from planner.platform_plan.plan_page import render_page
from planner.platform_plan.written_plan import runnable_schedule

PAIR = "smollm2-135m-instruct", "smollm2-135m-draft4"


@pytest.fixture(scope="module")
def plan():
    return plan_pair(*PAIR, "cpu-2core", lengths=(64, 32), weights=("bf16", None))


@pytest.fixture
def beside(plan, tmp_path):
    """A run of what is recommended, with some facts of it changed, beside the plan."""

    def of(*, times=1.0, tokens=2.0, **facts):
        entry = {
            "schedule": schedule_entry(runnable_schedule(plan, PAIR[1])),
            "target": PAIR[0],
            "dtype": "bfloat16",
            "tpot_s": times * plan.recommended.tpot_s,
            "mean_acceptance_length": tokens,
        }
        path = tmp_path / "run.json"
        path.write_text(json.dumps(entry | facts), encoding="utf-8")
        return beside_measured(plan, path, *PAIR)

    return of


def test_a_run_stands_beside_the_very_prediction_of_the_ranking(plan, beside):
    (found,) = beside(times=1.01).compared
    row = plan.recommended
    assert (found.prediction.tpot_s, found.prediction.errors) == (row.tpot_s, row.prediction.errors)
    assert (found.place, found.is_inside) == (row.place, True)
    assert found.error == pytest.approx(1 / 1.01 - 1), "predicted over measured, as in the JSON of a demo"


def test_a_sampled_run_is_not_compared_with_recorded_greedy_drafts(plan, beside):
    assert beside(temperature=0.8).compared, "assumed rates are of no temperature"
    recorded = replace(plan.question.record, assumed=None)
    known = replace(plan, question=replace(plan.question, record=recorded))
    run = beside(temperature=0.8).compared[0].run
    with pytest.raises(PlanError, match=r"it ran at temperature 0.8, but the record is of 0"):
        measured_run.beside(known, run)
    assert measured_run.beside(known, run.model_copy(update={"temperature": 0.0}))


def test_what_lies_outside_is_said_with_the_round_that_was_slow_and_the_tokens_that_it_brought(plan, beside):
    runs = beside(times=2.0, tokens=plan.recommended.prediction.mean_acceptance_length)
    (found,) = runs.compared
    assert not found.is_inside
    assert found.round_s[1] == pytest.approx(2 * found.round_s[0])
    said = runs.in_words
    assert said.startswith("Measured outside the predicted interval: ")
    assert "100 % more than" in said
    page = render_page(plan, measured=runs)
    assert f'<p class="bad">{escape(said)}' in page
    assert "Predicted and measured" not in render_page(plan)


def test_what_a_run_warned_of_is_told_with_its_time(plan, beside):
    other = "Other programs used 40 % of the processor."
    found = beside(warnings=[other, *(f"p{number}: cpu1: it was lost" for number in range(4))])
    assert len(measured_entries(found, plan)["measured_warnings"]) == 5
    assert found.in_words.endswith(
        " The runs warned: Other programs used 40 % of the processor; p0: cpu1: it was lost; p1: cpu1: it was lost; "
        "2 more."
    )
    assert "warned" not in beside().in_words


def test_warnings_of_a_demo_are_told_once(plan, tmp_path):
    demo = json.loads(Path("benchmarks/results/demos/1/demo.json").read_text(encoding="utf-8"))
    (tmp_path / "demo.json").write_text(json.dumps(demo | {"warnings": ["the machine was busy"]}), encoding="utf-8")
    assert beside_measured(plan, tmp_path / "demo.json", *PAIR).warnings == ("the machine was busy",)


def test_a_committed_demo_stands_beside_the_plan_as_far_as_the_plan_drafts_so(plan):
    found = beside_measured(plan, "benchmarks/results/demos/1/demo.json", *PAIR)
    schedules = [one.run.schedule for one in found.compared]
    assert {schedule.method for schedule in schedules} == {"autoregressive", "speculative", "mirror"}
    assert not any(schedule.exit_features for schedule in schedules)


def test_runs_that_the_plan_cannot_predict_are_named_with_the_reason(plan):
    ran = json.loads(Path("benchmarks/results/demos/1/demo.json").read_text(encoding="utf-8"))["schedules"]
    found = beside_measured(plan, "benchmarks/results/demos/1/demo.json", *PAIR)
    left_out = {one.run.schedule.method: one.reason for one in found.left_out}
    assert len(found.compared) + len(found.left_out) == len(ran)
    assert {"prompt_lookup", "eagle3"} <= set(left_out)
    assert left_out["prompt_lookup"].startswith("windows of prompt_lookup of prompt-lookup are not assumed")
    assert f"Not compared: {len(found.left_out)} of {len(ran)}: " in found.in_words
    assert all(one.name in found.in_words and one.reason in found.in_words for one in found.left_out)
    entries = measured_entries(found, plan)
    assert [entry["schedule"] for entry in entries["measured"] + entries["measured_left_out"]] == [
        schedule_entry(one.run.schedule) for one in (*found.compared, *found.left_out)
    ]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"target": "qwen3-8b"}, "of qwen3-8b in bfloat16, but the plan is of SmolLM2-135M in bf16"),
        ({"dtype": "float32"}, "in float32, but the plan is of SmolLM2-135M in bf16$"),
        ({"dtype": "int8"}, "in int8, but the plan is of SmolLM2-135M in bf16: ask with --weights int8$"),
        ({"schedule": {"method": "autoregressive", "target_lane": "openvino:GPU"}}, "it ran on openvino:GPU, but the"),
        ({"tpot_s": 0}, r"writes with --json \(tpot_s: .*"),
        ({"schedules": 3}, "writes with --json"),
        ({"schedules": [], "platform": {}}, "has no runs"),
    ],
)
def test_a_file_of_anything_else_is_refused_in_a_line(beside, facts, message):
    with pytest.raises(ConfigError, match=message) as caught:
        beside(**facts)
    assert "\n" not in str(caught.value)


def test_a_draft_of_another_plan_is_refused(plan, beside):
    schedule = schedule_entry(runnable_schedule(plan, "qwen3-0.6b"))
    with pytest.raises(
        ConfigError, match="can predict none of the runs: it drafted with qwen3-0.6b, but the plan is for"
    ):
        beside(schedule=schedule)
