"""Schedules are compared on the prompts they share; only what is left over counts as doubt."""

import pytest

from decoding.schedule import Schedule
from planner.search.comparison import Comparison, comparer
from planner.what_if.scaled_profile import with_speed
from sim.evaluator import predict
from tests.planner.synthetic import acceptance_record, machine

PLAIN = Schedule(method="autoregressive", target_lane="both")


def synchronous(window: int) -> Schedule:
    return Schedule(
        method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=window, drafter="four-layer"
    )


@pytest.fixture(scope="module")
def record():
    return acceptance_record(num_prompts=5)


def exact_machine():
    return machine().model_copy(update={"relative_error": 0.0})


def test_the_ratio_is_that_of_the_predictions_in_either_order(record):
    compare = comparer(machine(), record)
    ratio = predict(PLAIN, machine(), record).tpot_s / predict(synchronous(2), machine(), record).tpot_s
    assert compare(PLAIN, synchronous(2)).ratio == pytest.approx(ratio)
    assert compare(synchronous(2), PLAIN) == compare(PLAIN, synchronous(2))


def test_a_schedule_does_not_differ_from_itself(record):
    comparison = comparer(machine(), record)(synchronous(3), synchronous(3))
    assert comparison.ratio == 1
    assert not comparison.is_measurable


def test_prompts_that_all_agree_leave_no_doubt_but_the_machines(record):
    # Plain decoding on two lanes: the same ratio on every prompt, up to the contexts.
    other = PLAIN.model_copy(update={"target_lane": "target"})
    assert comparer(exact_machine(), record)(PLAIN, other).relative_error < 1e-3
    assert comparer(machine(), record)(PLAIN, other).relative_error == pytest.approx(0.03, abs=1e-3)


def test_doubt_shrinks_with_more_prompts():
    errors = [
        comparer(exact_machine(), acceptance_record(num_prompts=count))(PLAIN, synchronous(4)).relative_error
        for count in (4, 40)
    ]
    assert 0 < errors[1] < errors[0] / 2


def test_one_prompt_says_nothing_about_sampling():
    compare = comparer(exact_machine(), acceptance_record(num_prompts=1))
    assert compare(PLAIN, synchronous(4)).relative_error == 0


def test_pairs_are_sharper_than_intervals_of_their_own(record):
    slower = with_speed(exact_machine(), "draft", 0.9)
    one, other = predict(synchronous(2), exact_machine(), record), predict(synchronous(2), slower, record)
    assert one.tpot_s_high > other.tpot_s_low, "the intervals of the two overlap"
    compare = comparer(exact_machine(), record)
    pair = compare(synchronous(2), synchronous(3))
    assert pair.relative_error < predict(synchronous(2), exact_machine(), record).relative_error


@pytest.mark.parametrize(("ratio", "error", "is_measurable"), [(1.1, 0.05, True), (1.1, 0.1, False), (1.0, 0.0, False)])
def test_a_difference_must_exceed_its_error(ratio, error, is_measurable):
    assert Comparison(ratio=ratio, relative_error=error).is_measurable == is_measurable
