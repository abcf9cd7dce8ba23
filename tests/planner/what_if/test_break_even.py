"""Where another kind becomes the fastest: the nearest value on the way, from straight lines between those asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.what_if.sensitivity import BreakEven, crossing

VALUES = (0.1, 0.3, 0.5, 0.7, 0.9)
HERE = 2


CASES = {
    "between the values": (lambda x: {"synchronous": 1 - x, "plain": 0.63}, "plain", 0.37, None),
    "each way has its own": (
        lambda x: {"synchronous": 1.0, "mirror": 1.0 + min(x - 0.41, 0.79 - x)},
        "mirror",
        0.41,
        0.79,
    ),
    "the winner and all others are passed": (
        lambda x: {"synchronous": x, "mirror": 0.8, "plain": 0.7},
        "plain",
        None,
        0.7,
    ),
    "a third one still leads": (lambda x: {"synchronous": x, "mirror": 0.8, "plain": 0.7}, "mirror", None, None),
    "where the challenger leads the way goes back": (
        lambda x: {"synchronous": 1 - x, "plain": 0.45},
        "plain",
        0.55,
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_nearest_value_on_a_way_is_found(case):
    ask, challenger, down, up = CASES[case]
    for way, expected in (("down", down), ("up", up)):
        found = crossing(ask, VALUES, HERE, challenger, way)
        assert found is None if expected is None else found == pytest.approx(expected)


@given(st.floats(0.12, 0.48))
def test_at_the_value_found_both_are_equally_fast(at):
    found = crossing(lambda x: {"synchronous": 1.0, "plain": 1.0 + x - at}, VALUES, HERE, "plain", "down")
    assert found == pytest.approx(at)


def test_an_interval_holds_nine_of_ten_draws():
    found = BreakEven.of([place / 100 for place in range(101)])
    assert (found.low, found.at, found.high) == pytest.approx((0.05, 0.5, 0.95))


def test_one_draw_that_never_crosses_leaves_no_value():
    assert BreakEven.of([0.3, 0.4, None]) is None
