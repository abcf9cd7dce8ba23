"""Schedules are compared on the machine and the prompts that they share; only what is left over counts as doubt."""

from math import hypot

import numpy as np
import pytest

from decoding.schedule import Schedule
from decoding.student_t import t_quantile
from hwprofiles.profile import Profile
from planner.paired_ratio import Ratio
from planner.search.comparison import comparer
from sim.error_shares import ratio_error
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


def exact_machine() -> Profile:
    """No table of it is wrong."""
    found = machine()
    exact = {"relative_error": 0.0}

    def tables(lane):
        parts = ("layer", "lm_head", "draft_step", "draft_step_features")
        return {part: getattr(lane, part) and getattr(lane, part).model_copy(update=exact) for part in parts}

    lanes = tuple(lane.model_copy(update=tables(lane)) for lane in found.lanes)
    return found.model_copy(update=exact | {"lanes": lanes})


def test_the_ratio_is_how_many_times_as_fast_one_is(record):
    compare = comparer(machine(), record)
    ratio = predict(PLAIN, machine(), record).tpot_s / predict(synchronous(2), machine(), record).tpot_s
    assert compare(synchronous(2), PLAIN).value == pytest.approx(ratio)
    assert compare(PLAIN, synchronous(2)).value == pytest.approx(1 / ratio)


def test_a_schedule_does_not_differ_from_itself(record):
    ratio = comparer(machine(), record)(synchronous(3), synchronous(3))
    assert ratio == Ratio(value=1, num_pairs=5, prompts_error=0)
    assert (ratio.low, ratio.high, ratio.outcome) == (1, 1, "cannot tell")


def test_the_machine_errs_in_a_ratio_by_what_the_two_do_not_share(record):
    compare = comparer(machine(), record)
    plain, drafting = (predict(one, machine(), record) for one in (PLAIN, synchronous(2)))
    found = compare(PLAIN, synchronous(2))
    assert found.machine_error == ratio_error(plain.errors, drafting.errors)
    assert 0 < found.machine_error < plain.relative_error < hypot(plain.relative_error, drafting.relative_error)
    assert comparer(exact_machine(), record)(PLAIN, synchronous(2)).machine_error == 0


def test_what_all_times_are_off_by_leaves_the_verdict_alone(record):
    blurred = machine().model_copy(update={"relative_error": 5.0})
    assert comparer(blurred, record)(PLAIN, synchronous(2)) == comparer(machine(), record)(PLAIN, synchronous(2))


def test_the_chance_of_the_prompts_is_a_jackknife_with_students_t(record):
    compare = comparer(machine(), record)
    plain, drafting = (np.array(predict(one, machine(), record).prompt_decode_s) for one in (PLAIN, synchronous(2)))
    without_each = [np.delete(plain, at).sum() / np.delete(drafting, at).sum() for at in range(5)]
    standard_error = np.std(np.log(without_each)) * 2  # sqrt(n - 1) times their deviation
    assert compare(synchronous(2), PLAIN).prompts_error == pytest.approx(t_quantile(4) * standard_error)


def test_doubt_shrinks_with_more_prompts():
    few, many = (
        comparer(machine(), acceptance_record(num_prompts=count))(PLAIN, synchronous(4)).prompts_error
        for count in (4, 40)
    )
    assert 0 < many < few / 2
    assert comparer(machine(), acceptance_record(num_prompts=1))(PLAIN, synchronous(4)).prompts_error == 0
