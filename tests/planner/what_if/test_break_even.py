"""Where another kind becomes the fastest: the nearest value on the way, from straight lines between those asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.what_if.break_even import BreakEven, crossing

VALUES = (0.1, 0.3, 0.5, 0.7, 0.9)
HERE = 2


def test_it_is_found_between_the_values():
    def ask(x):
        return {"synchronous": 1 - x, "plain": 0.63}

    assert crossing(ask, VALUES, HERE, "plain", "down") == pytest.approx(0.37)
    assert crossing(ask, VALUES, HERE, "plain", "up") is None


def test_either_way_has_its_own():
    def ask(x):
        return {"synchronous": 1.0, "mirror": 1.0 + min(x - 0.41, 0.79 - x)}

    assert crossing(ask, VALUES, HERE, "mirror", "down") == pytest.approx(0.41)
    assert crossing(ask, VALUES, HERE, "mirror", "up") == pytest.approx(0.79)


def test_a_kind_that_passes_the_winner_but_not_a_third_does_not_lead():
    def ask(x):
        return {"synchronous": x, "mirror": 0.8, "plain": 0.7}

    assert crossing(ask, VALUES, HERE, "plain", "up") == pytest.approx(0.7)
    assert crossing(ask, VALUES, HERE, "mirror", "up") is None


def test_where_the_challenger_leads_already_the_way_leads_back():
    def ask(x):
        return {"synchronous": 1 - x, "plain": 0.45}

    assert crossing(ask, VALUES, HERE, "plain", "down") == pytest.approx(0.55)


def test_it_asks_only_for_what_it_meets():
    asked = set()

    def ask(x):
        asked.add(x)
        return {"synchronous": 1 - x, "plain": 0.63}

    crossing(ask, VALUES, HERE, "plain", "down")
    assert asked == {0.5, 0.3}


@given(st.floats(0.12, 0.48))
def test_at_the_value_found_both_are_equally_fast(at):
    found = crossing(lambda x: {"synchronous": 1.0, "plain": 1.0 + x - at}, VALUES, HERE, "plain", "down")
    assert found == pytest.approx(at)


def test_an_interval_holds_nine_of_ten_draws():
    found = BreakEven.of([place / 100 for place in range(101)])
    assert (found.low, found.at, found.high) == pytest.approx((0.05, 0.5, 0.95))


def test_one_draw_that_never_crosses_leaves_no_value():
    assert BreakEven.of([0.3, 0.4, None]) is None
