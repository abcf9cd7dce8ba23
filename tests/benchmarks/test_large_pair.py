"""A pair of a size that people use: lanes that fit, schedules they can run, results that survive an interruption."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from hwprofiles.host import LaneCores
from mirrorsd.lane_choice import specs_of
from mirrorsd.text_engine import replayed_texts
from planner.platform_plan.default_acceptance import COVERAGE
from tests.benchmarks.scripts import RESULTS, load_script

LANES = specs_of(
    [
        LaneCores(name="openvino:CPU@0", cores=(0,)),
        LaneCores(name="openvino:CPU@1", cores=(1,)),
        LaneCores(name="openvino:CPU", cores=(0, 1)),
    ]
)


@pytest.fixture(scope="module")
def lanes():
    return load_script("_large_lanes")


@pytest.fixture(scope="module")
def script():
    return load_script("large_pair")


def test_work_ends_before_there_is_no_memory_left(lanes, monkeypatch):
    left = iter([20_000_000_000, 5_000_000_000, 9_000_000_000, 900_000_000])
    monkeypatch.setattr(lanes, "available_bytes", lambda: next(left))
    watch = lanes.MemoryWatch()
    watch.look()
    watch.look()
    assert (watch.start_bytes, watch.least_bytes) == (20_000_000_000, 5_000_000_000)
    with pytest.raises(SystemExit, match=r"0\.9 GB of memory are left; the same command goes on"):
        watch.look()


def test_acceptance_is_what_plan_assumes_and_answers_every_schedule(lanes, script):
    record = script.assumed_record(18, num_texts=3, num_tokens=12)
    assert record.assumed.startswith("0.59 at every position")
    assert record.exit_layers == (18,)
    assert len(record.prompts) == 3
    assert f"exit coverage after layer 18: {COVERAGE[0.5][0]:g}" in record.assumed
    for schedule in lanes.schedules_of(LANES, 18, (2, 4)):
        texts = replayed_texts(record, schedule, vocab_size=100)
        assert [len(text.text) for text in texts] == [12] * 3


def test_runs_are_kept_prompt_by_prompt_and_the_result_is_written_after_each(script, lanes, tmp_path, monkeypatch):
    """On a made up machine: what interrupts the second prompt leaves the first in the result, and a restart goes on."""
    from planner.search.space import SearchSpace
    from tests.mirrorsd.compare.made_up_runs import made_up_runs
    from tests.planner.synthetic import acceptance_record, machine

    profile, record = machine(), acceptance_record(num_prompts=3)
    plan = script.make_plan(SearchSpace(windows=(2,)), profile, record)
    schedules = [one.schedule for one in plan.search.candidates[:4]]
    session, written, asked = made_up_session(script, tmp_path), [], []
    monkeypatch.setattr(script, "result", lambda *given: {"accuracy": given[3].measured.num_prompts})
    monkeypatch.setattr(script, "write_result", lambda _path, content: written.append(content["accuracy"]))
    monkeypatch.setattr(script, "anchors_of", lambda *_: None)

    def in_turn(_engine, order, prompts, *_args, **_options):
        asked.append((order, prompts))
        if len(asked) == 2:
            raise KeyboardInterrupt
        place = int(prompts[0])
        whole = made_up_runs(order, profile, record)
        return replace(whole, runs=tuple(row[place : place + 1] for row in whole.runs))

    monkeypatch.setattr(script, "run_in_turn", in_turn)
    engine = argparse.Namespace(prompts=("0", "1", "2"))
    with pytest.raises(KeyboardInterrupt):
        script.run_and_write(session, engine, plan, schedules)
    assert written == [1]
    script.run_and_write(session, engine, plan, schedules)
    assert written == [1, 1, 2, 3]
    assert [prompts for _, prompts in asked] == [("0",), ("1",), ("1",), ("2",)]
    assert asked[0][0] == schedules
    assert asked[2][0] == schedules[1:] + schedules[:1], "the order rotates"
    kept = script._kept(tmp_path, schedules)
    expected = made_up_runs(schedules, profile, record)
    assert [[run.trace.decode_s for run in row] for row in kept] == [
        [run.trace.decode_s for run in row] for row in expected.runs
    ]


def made_up_session(script, folder: Path):
    return argparse.Namespace(
        options=argparse.Namespace(folder=folder, out=folder / "result.json", tokens=12), say=lambda _step: None
    )


@pytest.mark.skipif(not (RESULTS / "large-pair.json").exists(), reason="not measured yet")
def test_the_result_says_what_is_not_real_about_it(script):
    result = script.read_result(RESULTS / "large-pair.json")
    assert "random weights, replayed acceptance" in result["label"]
    assert "Acceptance is assumed" in result["label"]
    assert result["num_runs"] == sum(len(one["runs"]) for one in result["schedules"])
    assert result["is_within_limits"] == all(result["accuracy"][name] <= most for name, most in script.LIMITS.items())
