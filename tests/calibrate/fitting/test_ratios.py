"""Ratios to anchors: the machine's speed cancels, doubts weigh, and intervals of ratios and anchors hold."""

import random
from math import exp, hypot, log
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.ratios import (
    NORMAL_90,
    AnchorErrors,
    AnchorRatio,
    among,
    anchor_errors,
    estimate,
    mean_pace,
    noise_of,
    trimmed_mean,
)

SECONDS = st.floats(1e-4, 10.0)
RATIOS = st.lists(st.builds(AnchorRatio, st.floats(0.9, 1.1), st.floats(0.01, 0.3)), min_size=1, max_size=9)


# One ratio


@given(SECONDS, SECONDS, SECONDS, st.floats(0.1, 10))
def test_a_machine_that_is_slower_throughout_leaves_the_ratio(seconds, before_s, after_s, slower):
    anchors_s = (before_s, after_s)
    usual, slow = among(seconds, anchors_s), among(slower * seconds, [slower * one for one in anchors_s])
    assert slow == pytest.approx(usual)
    assert usual.value == pytest.approx(2 * seconds / (before_s + after_s))


@given(SECONDS, SECONDS, SECONDS)
def test_the_doubt_is_half_of_what_changed_between_the_anchors_whichever_way_round(seconds, one_s, other_s):
    doubt = among(seconds, (one_s, other_s)).doubt
    assert doubt == pytest.approx(among(seconds, (other_s, one_s)).doubt)
    assert doubt >= abs(log(one_s / other_s)) / 2
    assert among(seconds, (one_s, one_s)).doubt == 0.03
    assert among(seconds, (1.0, 1.4)).doubt == pytest.approx(log(1.4) / 2, rel=0.02)


@given(SECONDS, st.lists(SECONDS, min_size=2, max_size=6))
def test_anchors_in_between_count_like_those_around_and_make_it_less_doubtful(seconds, anchors_s):
    once, twice = among(seconds, anchors_s), among(seconds, anchors_s * 2)
    assert twice.value == pytest.approx(once.value) == pytest.approx(seconds / fmean(anchors_s))
    assert twice.doubt <= once.doubt


# Their mean


def test_ratios_weigh_as_much_as_they_are_certain():
    found = estimate([AnchorRatio(1.0, 0.1), AnchorRatio(1.3, 0.2)])
    assert found.value == pytest.approx((4 * 1.0 + 1.3) / 5)
    assert found.variance == pytest.approx(1 / (0.1**-2 + 0.2**-2))


@given(st.floats(0.01, 100), st.lists(st.sampled_from([0.03, 0.1]), min_size=3, max_size=9))
def test_one_spike_counts_as_half_as_much_again_and_no_more(spike, doubts):
    ratios = [*(AnchorRatio(1.0, 0.03) for _ in doubts), AnchorRatio(spike, 0.03)]
    held = min(max(spike, 1 / 1.5), 1.5)
    assert estimate(ratios).value == pytest.approx((len(doubts) + held) / (len(doubts) + 1))


@given(RATIOS, st.floats(0.1, 10), st.randoms(use_true_random=False))
def test_estimates_have_no_unit_and_no_order(ratios, factor, random):
    usual = estimate(ratios)
    shuffled = [ratio.over(1 / factor) for ratio in ratios]
    random.shuffle(shuffled)
    other = estimate(shuffled)
    assert other.value == pytest.approx(factor * usual.value)
    assert other.log_half_width == pytest.approx(usual.log_half_width, abs=1e-9)
    assert min(ratios).value - 1e-12 <= usual.value <= max(ratios).value + 1e-12


@pytest.mark.parametrize("num", [2, 3, 8])
def test_nine_intervals_of_ten_hold_the_true_ratio_whatever_the_doubts_claim(num):
    draw = random.Random(num)
    hits = 0
    for _ in range(2000):
        found = estimate([AnchorRatio(exp(draw.gauss(0.0, 0.04)), 0.1) for _ in range(num)])
        hits += abs(log(found.value)) <= found.log_half_width
    assert 0.88 < hits / 2000 < 0.92


def test_the_interval_of_a_single_ratio_is_its_doubt():
    assert estimate([AnchorRatio(7.0, 0.1)]).log_half_width == pytest.approx(NORMAL_90 * 0.1)


# Noise of several


def test_what_ratios_vary_beyond_their_doubts_is_pooled_over_estimates():
    draw = random.Random(1)
    found = [estimate([AnchorRatio(draw.gauss(1.0, 0.1), 0.05) for _ in range(num)]) for num in (2, 3, 4) * 500]
    assert noise_of(found) == pytest.approx(4.0, rel=0.1)
    single = estimate([AnchorRatio(3.0, 0.05)])
    assert noise_of([*found, *[single] * 1000]) == noise_of(found)
    assert noise_of([single]) == 1.0


# The trimmed mean


@given(st.lists(SECONDS, min_size=1, max_size=19))
def test_of_few_values_nothing_is_left_out(values):
    assert trimmed_mean(values) == pytest.approx(fmean(values))


def test_of_many_the_ends_are_left_out():
    assert trimmed_mean([*[1.0] * 38, 1e9, 0.0]) == 1.0
    assert trimmed_mean([0.0, 1.0, 2.0, 1e9], share=0.25) == 1.5


def test_an_anchor_in_which_the_machine_stood_still_counts_as_two():
    assert mean_pace([1.0, 1.0, 1.0, 50.0]) == mean_pace([1.0, 1.0, 1.0, 2.0]) == 1.25
    assert mean_pace([1.0, 1.9]) == 1.45, "a lane that changes its speed is no lane that stands still"


LANES = ("a", "b", "c")
STRETCHES = 8


def taken(common: float, own: float, seed: int, lanes: tuple[str, ...] = LANES):
    """Anchors of a machine whose speed is another in every eighth of the time; (anchors, log mean by lane)."""
    draw = random.Random(seed)
    shifts = [draw.gauss(0.0, common) for _ in range(STRETCHES)]
    logs = {lane: [shift + draw.gauss(0.0, own) for shift in shifts] for lane in lanes}
    anchors = {
        lane: [
            (10 * place + at, (1 + index) * exp(value)) for place, value in enumerate(logs[lane]) for at in (0, 4, 9)
        ]
        for index, lane in enumerate(lanes)
    }
    return anchors, {lane: fmean(values) for lane, values in logs.items()}


@given(st.floats(0.1, 10.0), st.integers(1, 60))
def test_a_machine_that_keeps_its_speed_leaves_no_error(seconds, count):
    samples = {lane: [(float(at), seconds) for at in range(count)] for lane in LANES}
    assert anchor_errors(samples) == AnchorErrors(
        pytest.approx(0, abs=1e-9), dict.fromkeys(LANES, pytest.approx(0, abs=1e-9))
    )


def test_nine_intervals_of_ten_hold_the_ratio_of_two_lanes_and_the_mean_of_all():
    pairs, levels, singles = [], [], []
    for seed in range(1000):
        anchors, off = taken(0.05, 0.08, seed)
        errors = anchor_errors(anchors)
        pairs.append(abs(off["a"] - off["b"]) <= hypot(errors.own["a"], errors.own["b"]))
        levels.append(abs(fmean(off.values())) <= errors.common)
        singles.append(abs(off["c"]) <= hypot(errors.common, errors.own["c"]))
    assert 0.87 < fmean(pairs) < 0.94
    assert 0.87 < fmean(levels) < 0.93
    assert 0.87 < fmean(singles) < 0.96


def test_a_lane_that_slept_for_a_stretch_is_taken_to_have_been_as_before():
    anchors, _ = taken(0.05, 0.05, 4)
    anchors["b"] = [sample for sample in anchors["b"] if not 30 <= sample[0] < 40]
    filled = {**anchors, "b": sorted([*anchors["b"], *((30.0 + at, anchors["b"][8][1]) for at in (0, 4, 9))])}
    assert anchor_errors(anchors).own == pytest.approx(anchor_errors(filled).own)


def test_where_there_are_too_few_anchors_for_stretches_all_their_scatter_is_common():
    errors = anchor_errors({"a": [(0.0, 1.0), (1.0, exp(0.2)), (2.0, 1.0)], "b": [(0.0, 1.0)]})
    spread = pstdev([0.0, 0.2, 0.0]) * (3 / 2) ** 0.5
    assert errors == AnchorErrors(pytest.approx(NORMAL_90 * spread), {"a": 0.0, "b": 0.0})
