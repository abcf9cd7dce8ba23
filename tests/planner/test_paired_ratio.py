"""A ratio of times over shared prompts: its interval holds the truth as often as it says, and knows its limits."""

from dataclasses import replace
from math import exp, hypot, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.schedule import Schedule
from decoding.student_t import t_quantile
from hwprofiles.profile import Profile
from planner.paired_ratio import (
    CommonFit,
    Pairs,
    Ratio,
    comparer,
    paired_ratio,
    pairs_needed,
    prompts_error,
    ratio_by_rounds,
)
from sim.error_shares import ratio_error
from sim.evaluator import predict
from tests.planner.synthetic import acceptance_record, machine, with_equal_texts

TIMES = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=12)


def share_held(num_pairs, noise, *, unequal, truth=1.1, num_trials=2000):
    """How often the interval holds the ratio that noise was laid over."""
    random = np.random.default_rng((num_pairs, round(100 * noise), round(100 * unequal)))
    lengths = np.exp(random.normal(0, unequal, (num_trials, num_pairs)))
    one = lengths * np.exp(random.normal(0, noise, lengths.shape))
    other = truth * lengths * np.exp(random.normal(0, noise, lengths.shape))
    ratios = [paired_ratio(ours, theirs) for ours, theirs in zip(one, other, strict=True)]
    return np.mean([ratio.low <= truth <= ratio.high for ratio in ratios])


@pytest.mark.parametrize(
    ("num_pairs", "noise", "unequal"), [(4, 0.15, 0.8), (7, 0.05, 0.4), (7, 0.15, 0.0), (12, 0.15, 0.8)]
)
def test_nine_of_ten_intervals_hold_the_truth(num_pairs, noise, unequal):
    assert 0.87 <= share_held(num_pairs, noise, unequal=unequal) <= 0.935


def test_two_prompts_by_hand():
    # Equal shares of the time, log ratios 0 and 0.2: their standard error is 0.1, and t(1) is 6.3138.
    ratio = paired_ratio([1.0, 1.0], [1.0, float(np.exp(0.2))])
    weights = np.array([2.0, 1.0 + np.exp(0.2)])
    error = np.std([0, 0.2], ddof=1) * sqrt((weights**2).sum()) / weights.sum()
    assert ratio.high == pytest.approx(ratio.value * np.exp(6.3138 * error))
    assert ratio.low == pytest.approx(ratio.value / np.exp(6.3138 * error))
    assert ratio.outcome == "cannot tell"


def test_one_prompt_tells_nothing_and_prompts_that_agree_leave_no_doubt():
    ratio = paired_ratio([1.0], [5.0])
    assert (ratio.value, ratio.low, ratio.high, ratio.outcome) == (5.0, 0.0, inf, "cannot tell")
    assert pairs_needed(ratio) is None
    assert pairs_needed(Ratio(value=1.0, num_pairs=6, prompts_error=0.1)) is None, "equal ones are never told apart"
    assert paired_ratio([1.0, 2.0, 3.0], [1.1, 2.2, 3.3]).low == pytest.approx(1.1)
    assert paired_ratio([1.0, 3.0], [2.0, 4.0]).value == 6.0 / 4.0


@given(TIMES, st.floats(0.1, 10))
def test_the_other_way_round_is_the_inverse_and_a_faster_machine_changes_nothing(times, speed):
    one, other = zip(*times, strict=True)
    there, back = paired_ratio(one, other), paired_ratio(other, one)
    assert (there.value, there.prompts_error) == pytest.approx((1 / back.value, back.prompts_error))
    opposite = {"faster": "slower", "slower": "faster", "cannot tell": "cannot tell"}
    assert back.outcome == opposite[there.outcome]
    scaled = paired_ratio([speed * time for time in one], [speed * time for time in other])
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx((there.value, there.low, there.high))


def test_as_many_prompts_as_are_needed_would_decide():
    one = np.array([1.0, 1.1, 0.9, 1.0])
    other = 1.03 * one * np.exp([0.1, -0.1, 0.06, -0.06])
    ratio = paired_ratio(one, other)
    assert ratio.outcome == "cannot tell"
    needed = pairs_needed(ratio)
    assert 12 < needed < 100
    # The same four again and again; their spread is a little less than that of four that were drawn.
    assert paired_ratio(np.tile(one, needed // 4 + 1), np.tile(other, needed // 4 + 1)).outcome == "faster"
    few = round(0.6 * needed / 4)
    assert paired_ratio(np.tile(one, few), np.tile(other, few)).outcome == "cannot tell"


def test_a_doubt_a_tenth_larger_than_the_lead_needs_a_seventh_prompt():
    # of 7 prompts the doubt is t(6) / t(5) * sqrt(6 / 7) = 0.893 of that of 6
    assert pairs_needed(Ratio(value=exp(0.1), num_pairs=6, prompts_error=0.11)) == 7
    assert pairs_needed(Ratio(value=exp(0.1), num_pairs=6, prompts_error=0.113)) == 8


def test_kinds_by_hand():
    # Without either of a kind's two prompts the logarithms differ by d: the variance is the sum of d squared.
    pairs = Pairs([1.0] * 4, [1.0, 1.1, 2.0, 2.2], ["a", "a", "b", "b"])
    squares = log(5.3 / 5.2) ** 2 + log(4.3 / 4.1) ** 2
    assert prompts_error(pairs) == pytest.approx(t_quantile(4 - 2) * 3 / 4 * sqrt(squares))


def test_more_prompts_do_not_help_where_the_machine_is_not_known_so_well():
    unsure = Ratio(value=1.05, num_pairs=6, prompts_error=0.1, machine_error=0.04)
    assert pairs_needed(replace(unsure, machine_error=0.05)) is None, "log(1.05) is less"
    known = replace(unsure, machine_error=0.0)
    assert pairs_needed(unsure) > pairs_needed(known) > 6


@given(st.floats(0.1, 10), st.floats(0, 2), st.floats(0, 2))
def test_both_errors_together_make_the_interval(ratio, machine_error, prompts_error):
    found = Ratio(value=ratio, num_pairs=4, machine_error=machine_error, prompts_error=prompts_error)
    assert log(found.high / ratio) == pytest.approx(hypot(machine_error, prompts_error), abs=1e-12)
    assert log(ratio / found.low) == pytest.approx(hypot(machine_error, prompts_error), abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "error", "outcome"),
    [
        (1.1, 0.05, "faster"),
        (1.1, 0.1, "cannot tell"),
        (1.0, 0.0, "cannot tell"),
        (1 / 1.1, 0.1, "cannot tell"),
        (1 / 1.1, 0.05, "slower"),
        (exp(0.2), 0.199, "faster"),
        (exp(0.2), 0.201, "cannot tell"),
    ],
)
def test_a_difference_must_exceed_its_error(ratio, error, outcome):
    assert Ratio(value=ratio, num_pairs=4, machine_error=error, prompts_error=0).outcome == outcome
    assert Ratio(value=ratio, num_pairs=4, prompts_error=error).outcome == outcome


def fitted(logs, seconds=None):
    """A fit of log(measured / simulated) by schedule and prompt; `seconds` are simulated ones by prompt, if unlike."""

    def pair(prompt, log_ratio):
        simulated_s = 1.0 if seconds is None else seconds[prompt]
        return exp(log_ratio) * simulated_s, simulated_s

    return CommonFit(
        {name: {prompt: pair(prompt, value) for prompt, value in own.items()} for name, own in logs.items()}
    )


def survey(random, *, num_recorded, num_run, prompts_noise, cost_noise, bias=0.0):
    """Ratios of a survey in two phases: rounds of all recorded prompts are known, times of a few, and the truth is 1.

    `bias` is how wrong the simulation is about the cost of a round.
    """
    known = np.exp(random.normal(0, prompts_noise, num_recorded))
    one, other = random.normal(0, cost_noise / sqrt(2), (2, num_run))
    fit = fitted({"one": dict(enumerate(one)), "other": dict(enumerate(bias + other))})
    return ratio_by_rounds(Pairs(np.ones(num_recorded), known), fit.difference("one", "other"))


@pytest.mark.parametrize(
    ("num_recorded", "num_run", "prompts_noise", "cost_noise", "bias"),
    [(40, 6, 0.3, 0.03, 0.0), (12, 6, 0.3, 0.03, 0.3), (40, 4, 0.0, 0.05, 0.3), (24, 24, 0.15, 0.1, 0.0)],
)
def test_known_rounds_leave_nine_of_ten_intervals_right_however_wrong_their_simulated_cost_is(
    num_recorded, num_run, prompts_noise, cost_noise, bias
):
    random = np.random.default_rng((num_recorded, num_run, round(100 * bias)))
    sizes = {"num_recorded": num_recorded, "num_run": num_run, "prompts_noise": prompts_noise}
    ratios = [survey(random, **sizes, cost_noise=cost_noise, bias=bias) for _ in range(1500)]
    truth = exp(bias + (prompts_noise**2) / 2)
    assert 0.87 <= np.mean([ratio.low <= truth <= ratio.high for ratio in ratios]) <= 0.97


def test_known_rounds_tell_what_a_few_runs_cannot():
    """A lead of 15 % over prompts that differ by 30 %: 40 recorded and 12 run tell it, 12 run hardly."""

    def power(num_recorded):
        random = np.random.default_rng(num_recorded)
        sizes = {"num_run": 12, "prompts_noise": 0.3, "cost_noise": 0.033}
        lead = log(1.15) - 0.3**2 / 2
        made = [survey(random, num_recorded=num_recorded, bias=lead, **sizes) for _ in range(500)]
        return np.mean([ratio.outcome == "faster" for ratio in made])

    assert power(12) < 0.5
    assert power(40) > 0.8


def test_two_schedules_differ_by_the_mean_of_their_logarithms_with_students_interval():
    one, other = [0.1, 0.2, -0.1], [0.2, 0.6, 0.1]
    fit = fitted({"one": dict(enumerate(one)), "other": dict(enumerate(other))})
    differences = np.subtract(other, one)
    error = t_quantile(2) * differences.std(ddof=1) / sqrt(3)
    assert fit.difference("one", "other") == pytest.approx((differences.mean(), error))
    assert fit.difference("other", "one") == pytest.approx((-differences.mean(), error))
    assert fit.difference("one", "one") == (0.0, 0.0)
    ratio = ratio_by_rounds(Pairs([1.0, 2.0, 3.0], [2.0, 2.0, 1.0]), fit.difference("one", "other"))
    assert ratio.value == pytest.approx(5 / 6 * exp(differences.mean()))
    assert ratio.low < ratio.on_these.low < ratio.value == ratio.on_these.value < ratio.on_these.high < ratio.high
    assert log(ratio.on_these.high / ratio.value) == pytest.approx(error)
    weighed = fitted({"one": dict(enumerate(one)), "other": dict(enumerate(other))}, [1.0, 2.0, 5.0])
    assert weighed.difference("one", "other")[0] == pytest.approx(np.average(differences, weights=[1, 2, 5]))
    once = fitted({"one": {"a": 0.1}, "other": {"a": 0.5}})
    assert once.difference("one", "other") == pytest.approx((0.4, inf)), "one prompt was run"


def test_noise_is_known_from_all_runs_and_a_pair_by_way_of_the_others():
    random = np.random.default_rng(8)
    parts, noises = np.array([0.1, -0.2, 0.3, 0.0]), random.normal(0, 0.05, (400, 4, 8))
    held, widths, alone = [], [], []
    for noise in noises:
        logs = parts[:, None] + random.normal(0, 0.5, 8) + noise
        # two run all prompts, one the first four, one the last four: no prompt is shared by these
        runs = {"a": range(8), "b": range(8), "c": range(4), "d": range(4, 8)}
        named = {name: {at: own[at] for at in runs[name]} for name, own in zip(runs, logs, strict=True)}
        fit = fitted(named)
        found, error = fit.difference("c", "d")
        held.append(abs(found - (parts[3] - parts[2])) <= error)
        widths.append(fit.difference("a", "b")[1])
        alone.append(fitted({name: named[name] for name in "ab"}).difference("a", "b")[1])
    assert 0.86 <= np.mean(held) <= 0.94
    assert np.mean(widths) < 0.95 * np.mean(alone)


@pytest.mark.parametrize(("short_noise", "most"), [(0.03, 0.94), (0.09, 1.0)])
def test_nine_of_ten_differences_hold_at_least_where_some_texts_are_short_and_perhaps_noisier(short_noise, most):
    """Six whole texts and four that are cut, and two schedules that ran two of these alone."""
    random, seconds = np.random.default_rng(7), [1.0] * 4 + [4.0] * 6
    held = []
    for _ in range(1000):
        logs = random.normal(0, np.where(np.array(seconds) > 1, 0.03, short_noise), (4, 10))
        runs = {
            name: dict(enumerate(own[:count])) for name, own, count in zip("abcd", logs, (10, 10, 2, 2), strict=True)
        }
        found, error = fitted(runs, seconds).difference("a", "b")
        held.append(abs(found) <= error)
    assert 0.86 <= np.mean(held) <= most


def test_what_no_run_links_is_not_compared():
    fit = fitted({"a": {"x": 0.1, "y": 0.2}, "b": {"y": 0.1, "z": 0.3}, "c": {"z": 0.2}, "alone": {"w": 0.1}})
    assert fit.compares("a", "c"), "by way of b"
    assert not fit.compares("a", "alone")
    assert not fit.compares("a", "never run")


@pytest.mark.parametrize(("num_prompts", "apart"), [(12, 0.5), (24, 0.5), (60, 0.5), (60, 0.0)])
def test_chance_is_within_kinds_of_prompts_that_take_turns(num_prompts, apart):
    random, kinds = np.random.default_rng(num_prompts), np.arange(num_prompts) % 6
    held, narrower = [], []
    for _ in range(800):
        ratios = 1 + apart * (kinds - 2.5) / 2.5 + random.normal(0, 0.2, num_prompts)
        pairs = Pairs(np.ones(num_prompts), ratios, [f"kind {kind}" for kind in kinds])
        error = prompts_error(pairs)
        held.append(abs(log(ratios.mean())) <= error)
        narrower.append(error / prompts_error(pairs._replace(kinds=())))
    assert 0.87 <= np.mean(held) <= 0.93
    assert (np.mean(narrower) < 0.75) == (apart > 0)
    assert prompts_error(pairs._replace(kinds=["only", *pairs.kinds[1:]])) == prompts_error(pairs._replace(kinds=()))


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
    exact = {"relative_error": 0.0}
    parts = dict.fromkeys(("layer", "lm_head", "draft_step", "draft_step_features", "draft_start"))
    lanes = (lane.changed(parts, lambda table, _: table.model_copy(update=exact)) for lane in machine().lanes)
    return machine().model_copy(update=exact | {"lanes": tuple(lanes)})


def test_a_schedule_does_not_differ_from_itself(record):
    ratio = comparer(machine(), record)(synchronous(3), synchronous(3))
    assert ratio == Ratio(value=1, num_pairs=5, prompts_error=0)
    assert (ratio.low, ratio.high, ratio.outcome) == (1, 1, "cannot tell")


def test_a_ratio_is_how_many_times_as_fast_one_is_and_errs_by_what_the_two_do_not_share(record):
    compare = comparer(machine(), record)
    plain, drafting = (predict(one, machine(), record) for one in (PLAIN, synchronous(2)))
    found = compare(PLAIN, synchronous(2))
    assert found.value == pytest.approx(drafting.tpot_s / plain.tpot_s)
    assert compare(synchronous(2), PLAIN).value == pytest.approx(1 / found.value)
    assert found.machine_error == ratio_error(plain.errors, drafting.errors)
    assert 0 < found.machine_error < plain.relative_error < hypot(plain.relative_error, drafting.relative_error)
    assert comparer(exact_machine(), record)(PLAIN, synchronous(2)).machine_error == 0
    blurred = machine().model_copy(update={"relative_error": 5.0})
    assert comparer(blurred, record)(PLAIN, synchronous(2)) == found, "all times together"


def test_the_chance_of_the_prompts_is_a_jackknife_with_students_t(record):
    compare = comparer(machine(), record)
    plain, drafting = (np.array(predict(one, machine(), record).prompt_decode_s) for one in (PLAIN, synchronous(2)))
    without_each = [np.delete(plain, at).sum() / np.delete(drafting, at).sum() for at in range(5)]
    standard_error = np.std(np.log(without_each)) * 2  # sqrt(n - 1) times their deviation
    assert compare(synchronous(2), PLAIN).prompts_error == pytest.approx(t_quantile(4) * standard_error)


def test_further_texts_of_a_prompt_are_no_further_prompts(record):
    once, again = (comparer(machine(), one)(synchronous(2), PLAIN) for one in (record, with_equal_texts(record, 3)))
    assert (again.value, again.prompts_error) == pytest.approx((once.value, once.prompts_error))
    assert (again.num_pairs, pairs_needed(again)) == (once.num_pairs, pairs_needed(once)) == (5, pairs_needed(once))


def test_one_recorded_prompt_does_not_show_how_prompts_differ(record):
    alone = replace(record, prompts=record.prompts[:1])
    found = comparer(exact_machine(), alone)(synchronous(2), PLAIN)
    assert (found.low, found.high, found.outcome) == (0, inf, "cannot tell")
    assert found.on_these.outcome == "faster", "the machine is known"
