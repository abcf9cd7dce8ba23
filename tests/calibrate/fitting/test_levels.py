"""One level for all lanes, unless a lane's interval leaves it out."""

from math import exp, inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.levels import Level, Prior, settled, shared_levels
from calibrate.fitting.ratios import NORMAL_90, AnchorRatio, estimate


def ratios(*values: float, doubt: float = 0.05) -> list[AnchorRatio]:
    return [AnchorRatio(value, doubt) for value in values]


OPEN = Prior(inf)
"""Whatever runs say is believed."""


# One level


def test_runs_that_scatter_hardly_move_a_level_from_what_it_is_taken_to_be():
    prior = Prior(spread=0.02)
    noisy, certain = settled(ratios(0.7, 1.2, 1.6), prior), settled(ratios(*[1.2] * 400), prior)
    assert 1.0 < noisy.factor < 1.01
    assert certain.factor == pytest.approx(1.2, rel=0.005)
    assert certain.half_width < noisy.half_width < 0.034


@given(st.lists(st.floats(0.8, 1.25), min_size=1, max_size=8), st.floats(0.8, 1.25), st.floats(0.01, 0.3))
def test_a_settled_level_lies_between_prior_and_runs_and_is_more_certain_than_either(values, around, spread):
    prior, runs = Prior(spread, Level(around)), ratios(*values)
    level, believed = settled(runs, prior), settled(runs, OPEN)
    assert min(around, believed.factor) - 1e-9 <= level.factor <= max(around, believed.factor) + 1e-9
    assert level.half_width <= min(settled([], prior).half_width, believed.half_width) + 1e-9


def test_a_prior_and_runs_that_are_as_certain_count_alike():
    runs = ratios(0.9, 1.0, 1.1)
    own = estimate(runs)
    level = settled(runs, Prior(own.log_half_width / NORMAL_90, Level(1.2)))
    assert level.factor == pytest.approx((1.2 * own.value) ** 0.5)
    assert level.half_width == pytest.approx(exp(own.log_half_width / 2**0.5) - 1)


# Lanes


def test_lanes_whose_intervals_overlap_share_one_level_that_is_the_mean_of_all_runs():
    by_lane = {"a": ratios(0.9, 1.0, 1.1), "b": ratios(0.95, 1.1, 1.25)}
    levels = shared_levels(by_lane, OPEN)
    together = estimate([*by_lane["a"], *by_lane["b"]])
    assert levels["a"] == levels["b"]
    assert levels["a"].half_width == pytest.approx(exp(together.log_half_width) - 1)
    assert levels["a"].factor == pytest.approx(1.05)
    assert not levels["a"].is_own


def test_two_runs_are_too_few_for_a_level_of_ones_own():
    levels = shared_levels({"a": ratios(0.9, 1.0, 1.1), "b": ratios(1.4, 1.4)}, OPEN)
    assert levels["a"] == levels["b"]


def test_a_lane_without_runs_has_that_of_the_others_and_without_any_all_is_as_in_a_loop():
    levels = shared_levels({"a": ratios(1.2, 1.2, 1.2), "b": []}, OPEN)
    assert levels["b"] == levels["a"]
    assert levels["b"].factor == pytest.approx(1.2)
    assert {level.factor for level in shared_levels({"a": [], "b": []}, Prior(0.1)).values()} == {1.0}


@given(st.lists(st.floats(0.8, 1.25), min_size=2, max_size=8), st.integers(1, 3))
def test_a_shared_level_lies_among_the_runs_and_is_as_uncertain_as_they_scatter(values, num_lanes):
    by_lane = {str(lane): ratios(*values[lane::num_lanes]) for lane in range(num_lanes)}
    for level in shared_levels(by_lane, OPEN).values():
        if not level.is_own:
            assert min(values) - 1e-9 <= level.factor <= max(values) + 1e-9
            assert log(1 + level.half_width) >= estimate(ratios(*values)).log_half_width - 1e-9


@given(st.lists(st.floats(0.8, 1.25), min_size=3, max_size=6), st.lists(st.floats(0.8, 1.6), min_size=3, max_size=6))
def test_a_lane_has_its_own_exactly_where_its_interval_leaves_the_common_one_out(some, others):
    by_lane = {"a": ratios(*some), "b": ratios(*others)}
    together = estimate([*by_lane["a"], *by_lane["b"]])
    for lane, level in shared_levels(by_lane, OPEN).items():
        own = estimate(by_lane[lane])
        assert level.is_own == (abs(log(own.value / together.value)) > own.log_half_width)
