import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.published.stream_rates import NUM_STREAMS, WINDOW, stream_rate
from planner.reproduce.reproduction import Arms, RoundSeconds, tokens_per_round
from planner.reproduce.setup import EXIT_TOP_K, PROMPT_TOKENS
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import TaskRates, Texts
from sim.evaluator import Evaluator

positive = st.floats(0.01, 10.0)
rates = st.floats(0.0, 1.0)


@st.composite
def arms(draw):
    """Any machine on which reading one token more takes no longer than drafting it."""
    plain_s, step_s, more_s = draw(positive), draw(positive), draw(st.floats(0.0, 1.0))
    refused = plain_s + WINDOW * step_s
    in_turn = RoundSeconds(refused, refused, refused + more_s * step_s, refused + more_s * step_s)
    hit, miss = draw(positive), draw(positive)
    mirror = RoundSeconds(hit, hit + miss, hit, hit + miss)
    return Arms(plain_s, {"sd": in_turn, "mirror": mirror})


def test_tokens_of_a_round_are_those_of_the_closed_form():
    for rate in (0.0, 0.3, 0.85, 1.0):
        expected = TaskRates(rates=rate).mean_acceptance_length(WINDOW)
        assert tokens_per_round(np.array([rate]))[0] == pytest.approx(expected, rel=1e-12)


@given(arms(), rates)
def test_the_rate_is_read_back_from_the_speedup_that_it_gives(machine, rate):
    speedup = machine.speedup("sd", np.array([rate]), 0.0)
    assert machine.rate_of(speedup)[0] == pytest.approx(rate, abs=1e-7)


@given(arms(), rates, rates)
def test_more_acceptance_is_never_slower(machine, one, other):
    less, more = sorted((one, other))
    for arm in machine.rounds:
        found = machine.speedup(arm, np.array([less, more]), 0.7)
        assert found[1] >= found[0] * (1 - 1e-12)


@given(arms(), rates, rates, rates)
def test_more_coverage_is_never_slower(machine, rate, one, other):
    less, more = sorted((one, other))
    found = [machine.speedup("mirror", np.array([rate]), coverage)[0] for coverage in (less, more)]
    assert found[1] >= found[0] * (1 - 1e-12)


@given(arms())
def test_what_no_rate_gives_is_the_nearest_rate(machine):
    assert machine.rate_of(np.array([1e-9, 1e9])).tolist() == pytest.approx([0.0, 1.0], abs=1e-9)


@pytest.mark.parametrize(("rate", "coverage"), [(0.5, 0.9), (0.9, 0.4)])
def test_the_closed_form_is_what_the_world_gives_on_drawn_texts(setup, rate, coverage):
    constants = setup.datasheet() | {"exit_coverage": coverage}
    found, known = Arms.of(setup, constants), setup.profile(constants)
    acceptance = Bernoulli(
        rate,
        texts=Texts(num_texts=32, num_tokens=384, prompt_length=PROMPT_TOKENS - 384),
        exit_coverage={setup.exit_layer: (coverage,) * EXIT_TOP_K},
        stream_rates=(stream_rate(),) * NUM_STREAMS,
    )
    known_s = Evaluator(known.profile, acceptance, costs=known.costs).tpot_s
    for arm, schedule in setup.arms.items():
        expected = float(found.speedup(arm, np.array([rate]), coverage)[0])
        assert known_s(setup.plain) / known_s(schedule) == pytest.approx(expected, rel=0.02)


def test_faster_links_never_slow_a_round(setup):
    base = setup.datasheet()
    before = Arms.of(setup, base)
    for name in ("link_latency_s", "handover_s"):
        after = Arms.of(setup, base | {name: base[name] / 2})
        assert after.plain_s <= before.plain_s
        for arm, slow in before.rounds.items():
            assert all(one <= other for one, other in zip(after.rounds[arm], slow, strict=True))
