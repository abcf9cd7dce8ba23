"""One level for all lanes, unless a lane's interval leaves it out."""

import random
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.levels import Level, grouped_levels, shared_levels
from calibrate.fitting.ratios import Ratio, estimate


def ratios(*values: float, doubt: float = 0.05) -> list[Ratio]:
    return [Ratio(value, doubt) for value in values]


NOISY = ratios(0.8, 1.0, 1.2)


def test_lanes_whose_intervals_overlap_share_one_level_that_is_the_mean_of_all_runs() -> None:
    by_lane = {"a": ratios(0.9, 1.0, 1.1), "b": ratios(0.95, 1.1, 1.25)}
    levels = shared_levels(by_lane)
    together = estimate([*by_lane["a"], *by_lane["b"]])
    assert levels["a"] == levels["b"] == Level(together.value, exp(together.log_half_width) - 1)
    assert levels["a"].factor == pytest.approx(1.05)
    assert not levels["a"].is_own


def test_a_lane_whose_interval_leaves_that_out_has_its_own() -> None:
    levels = shared_levels({"a": ratios(0.9, 1.0, 1.1), "b": ratios(0.9, 1.0, 1.1), "c": ratios(1.39, 1.40, 1.41)})
    assert levels["c"].factor == pytest.approx(1.4)
    assert levels["c"].is_own
    assert 0 < levels["c"].half_width < 0.02
    assert levels["a"] == levels["b"] != levels["c"]
    assert not levels["a"].is_own


def test_two_runs_are_too_few_for_a_level_of_ones_own() -> None:
    levels = shared_levels({"a": ratios(0.9, 1.0, 1.1), "b": ratios(1.4, 1.4)})
    assert levels["a"] == levels["b"]


def test_a_lane_without_runs_has_that_of_the_others_and_without_any_all_is_as_in_a_loop() -> None:
    levels = shared_levels({"a": ratios(1.2, 1.2, 1.2), "b": []})
    assert levels["b"] == levels["a"]
    assert levels["b"].factor == pytest.approx(1.2)
    assert shared_levels({"a": [], "b": []}) == {"a": Level(), "b": Level()}


def test_lanes_alike_seldom_have_levels_of_their_own() -> None:
    draw = random.Random(2)
    own = 0
    for _ in range(300):
        by_lane = {lane: ratios(*(draw.gauss(1.1, 0.08) for _ in range(8))) for lane in "abc"}
        own += sum(level.is_own for level in shared_levels(by_lane).values())
    assert own / 900 < 0.1


@given(st.lists(st.floats(0.8, 1.25), min_size=2, max_size=8), st.integers(1, 3))
def test_a_shared_level_lies_among_the_runs_and_within_what_it_may_be_off_by(values, num_lanes) -> None:
    by_lane = {str(lane): ratios(*values[lane::num_lanes]) for lane in range(num_lanes)}
    for level in shared_levels(by_lane).values():
        if not level.is_own:
            assert min(values) - 1e-9 <= level.factor <= max(values) + 1e-9
            assert log(1 + level.half_width) == pytest.approx(estimate(ratios(*values)).log_half_width)


@given(st.lists(st.floats(0.8, 1.25), min_size=3, max_size=6), st.lists(st.floats(0.8, 1.6), min_size=3, max_size=6))
def test_a_lane_has_its_own_exactly_where_its_interval_leaves_the_common_one_out(some, others) -> None:
    by_lane = {"a": ratios(*some), "b": ratios(*others)}
    together = estimate([*by_lane["a"], *by_lane["b"]])
    for lane, level in shared_levels(by_lane).items():
        own = estimate(by_lane[lane])
        assert level.is_own == (abs(log(own.value / together.value)) > own.log_half_width)


# Groups


THREADS = {"cpu0": 1, "cpu1": 1, "both": 2}


def test_lanes_of_as_many_threads_share_a_level_and_no_others() -> None:
    levels = grouped_levels({"cpu1": ratios(1.2, 1.2), "both": ratios(1.05)}, THREADS)
    assert {lane: level.factor for lane, level in levels.items()} == pytest.approx(
        {"cpu0": 1.2, "cpu1": 1.2, "both": 1.05}
    )


def test_a_group_without_runs_has_the_levels_instead() -> None:
    instead = {"cpu0": Level(1.0), "cpu1": Level(1.0), "both": Level(1.3, 0.1)}
    levels = grouped_levels({"cpu0": ratios(1.2)}, THREADS, instead)
    assert levels["both"] == Level(1.3, 0.1)
    assert levels["cpu1"].factor == pytest.approx(1.2)


def test_or_without_them_that_of_all_other_lanes_together() -> None:
    levels = grouped_levels({"cpu0": ratios(1.2), "cpu1": ratios(1.0)}, THREADS)
    assert levels["both"].factor == pytest.approx(1.1)
    assert grouped_levels({}, THREADS) == dict.fromkeys(THREADS, Level())
