"""A pair of a size that people use: lanes that fit, schedules they can run, and a result that says what it is."""

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
def script():
    return load_script("large_pair")


def test_acceptance_is_what_plan_assumes_and_answers_every_schedule(script):
    record = script.assumed_record(18, num_texts=3, num_tokens=12)
    assert record.assumed.startswith("0.59 at every position")
    assert record.exit_layers == (18,)
    assert len(record.prompts) == 3
    assert f"exit coverage after layer 18: {COVERAGE[0.5][0]:g}" in record.assumed
    for schedule in script.schedules_of(LANES, 18, (2, 4)):
        texts = replayed_texts(record, schedule, vocab_size=100)
        assert [len(text.text) for text in texts] == [12] * 3


@pytest.mark.skipif(not (RESULTS / "large-pair.json").exists(), reason="not measured yet")
def test_the_result_says_what_is_not_real_about_it(script):
    result = load_script("_common").read_result(RESULTS / "large-pair.json")
    assert "random weights, replayed acceptance" in result["label"]
    assert "Acceptance is assumed" in result["label"]
    assert result["num_runs"] == sum(len(one["runs"]) for one in result["schedules"])
