from types import SimpleNamespace

import pytest

from planner.paired_ratio import Ratio
from planner.platform_plan import platform_plan as module
from planner.platform_plan.platform_plan import acceptance_needed


@pytest.fixture
def asked(monkeypatch):
    """Ask with made-up comparisons: a ratio for each schedule and rate, known to `error`."""

    def ask(ratio, *, error=0.0, schedules=("one",)):
        def evaluator(rate):
            def predict(one):
                return SimpleNamespace(schedule=one, rate=rate, tpot_s=1.0, error=0.0)

            return SimpleNamespace(tpot_s=lambda one: 1 / ratio(one, rate), predict=predict, with_texts=evaluator)

        def ratio_of(ours, plain):
            assert plain == SimpleNamespace(schedule="plain", rate=ours.rate, tpot_s=1.0, error=0.0)
            value = ratio(ours.schedule, ours.rate)
            return Ratio(value=value, num_pairs=1, prompts_error=0.0, machine_error=ours.error)

        def doubted(schedule, prediction):
            prediction.error = error
            return prediction

        monkeypatch.setattr(module, "Evaluator", lambda profile, record, costs: evaluator(None))
        monkeypatch.setattr(module, "Doubts", lambda *_: SimpleNamespace(added=doubted))
        monkeypatch.setattr(module, "ratio_of", ratio_of)
        question = SimpleNamespace(acceptance=SimpleNamespace(value=0.6), record=None, record_at=lambda rate: rate)
        return acceptance_needed(schedules, "plain", SimpleNamespace(profile=None, costs=None), question)

    return ask


def test_a_straight_line_is_crossed_where_it_is_one_and_errors_widen_that(asked):
    found, wider = (asked(lambda one, rate: 0.5 + rate, error=error) for error in (0.0, 0.1))
    assert (found.low, found.at, found.high, found.now) == pytest.approx((0.5, 0.5, 0.5, 0.6))
    assert wider.at == pytest.approx(0.5)
    assert wider.low < wider.at < wider.high


def test_the_best_schedule_counts_at_every_rate(asked):
    found = asked(lambda one, rate: {"one": 0.2 + rate, "two": 0.7}[one], schedules=("one", "two"))
    assert found.at == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("ratio", "always", "never", "told"),
    [
        (lambda rate: 1.2, True, False, "below 5 %"),
        (lambda rate: 0.8, False, True, "above 95 %"),
        (lambda rate: 1.5 - rate, False, False, "\N{EN DASH}"),
    ],
    ids=["always faster", "never faster", "faster at low rates"],
)
def test_without_a_crossing_a_table_says_on_which_side_the_break_even_is(asked, ratio, always, never, told):
    found = asked(lambda one, rate: ratio(rate))
    assert (found.at, found.always, found.never) == (None, always, never)
    assert found.breaks_even == told
    assert asked(lambda one, rate: 0.5 + rate).breaks_even == "50 %"
