import pytest

from tests.benchmarks.scripts import RESULTS, load_script


@pytest.fixture(scope="module")
def script():
    return load_script("plan_questions")


def test_every_question_that_was_asked_was_answered_by_the_laws_or_refused(script):
    result = script._common.read_result(RESULTS / "plan-questions.json")
    assert result["questions"] >= 10_000
    assert result["failures"] == []
    assert set(result["outcomes"]) == {"answered", "refused"}
    assert min(result["outcomes"].values()) > result["questions"] / 10
    assert result["longest_s"] < script.LIMIT_S


def test_outcomes_are_counted_and_what_is_no_outcome_is_kept_with_its_seed(script):
    result = {"questions": 0, "outcomes": {}, "failures": [], "longest_s": 0.0}
    told = ["answered", "refused", "untold: exit 1", "answered"]
    for seed in range(len(told)):
        script._keep(result, seed, told.__getitem__)
    assert result["outcomes"] == {"answered": 2, "refused": 1, "untold": 1}
    assert result["failures"] == [{"seed": 2, "what": "exit 1"}]
    assert result["questions"] == 4
