import pytest

from planner.paired_ratio import Ratio
from planner.platform_plan import acceptance_needed as module
from planner.platform_plan.acceptance_needed import RATES, acceptance_needed


def known_to(error, ratio):
    return Ratio(value=ratio, num_pairs=1, prompts_error=0.0, machine_error=error)


@pytest.fixture
def asked(monkeypatch):
    """Ask with made-up comparisons: a ratio for each schedule and rate, known to `error`."""

    def ask(ratio, *, error=0.0, schedules=("one",), now=0.6):
        monkeypatch.setattr(
            module, "comparer", lambda profile, rate, costs: lambda one, plain: known_to(error, ratio(one, rate))
        )
        return acceptance_needed(schedules, "plain", None, lambda rate: rate, now=now)

    return ask


def test_a_straight_line_is_crossed_where_it_is_one(asked):
    found = asked(lambda one, rate: 0.5 + rate)
    assert found.at == pytest.approx(0.5)
    assert (found.low, found.high, found.now) == (pytest.approx(0.5), pytest.approx(0.5), 0.6)


def test_what_the_machine_may_be_off_by_widens_the_break_even(asked):
    found = asked(lambda one, rate: 0.5 + rate, error=0.1)
    assert found.low < found.at < found.high


def test_the_best_schedule_counts_at_every_rate(asked):
    found = asked(lambda one, rate: {"one": 0.2 + rate, "two": 0.7}[one], schedules=("one", "two"))
    assert found.at == pytest.approx(0.8)


def test_where_it_always_or_never_pays_there_is_no_break_even(asked):
    always, never = asked(lambda one, rate: 1.2), asked(lambda one, rate: 0.8)
    assert (always.at, always.always, always.never) == (None, True, False)
    assert (never.at, never.always, never.never) == (None, False, True)


def test_what_is_faster_at_some_rates_only_is_neither(asked):
    found = asked(lambda one, rate: 1.5 - rate)
    assert (found.at, found.always, found.never) == (None, False, False)


def test_rates_cover_rare_and_sure():
    assert RATES[0] <= 0.05
    assert RATES[-1] >= 0.95
