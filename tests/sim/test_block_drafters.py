"""Drafters of blocks: all tokens of a window in one pass, a row each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from decoding.trace import Work
from hwprofiles.profile import Profile
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.evaluator import predict
from sim.world import simulate
from tests.sim.playing import by_rows
from tests.sim.test_both_simulators import check
from tests.sim.worlds.at_random import profiles
from tests.sim.worlds.machines import lane, machine

VERIFY_S = 11.0


def block(num_tokens: int, *, draft_lane: str = "target") -> Schedule:
    return Schedule(
        method="block", target_lane="target", draft_lane=draft_lane, num_speculative_tokens=num_tokens, drafter="head"
    )


def assumed(rate: float, num_tokens: int = 40) -> Bernoulli:
    return Bernoulli(rate, texts=Texts(num_texts=1, num_tokens=num_tokens, prompt_length=3), blocks=("head",))


def with_head(*seconds: float) -> Profile:
    """A head that takes so long for 1, 2, ... rows."""
    target = lane("target")
    return machine(target.model_copy(update={"heads": {"head": by_rows(*seconds)}}), lane("draft"))


@pytest.mark.parametrize(("rate", "num_tokens", "rows"), [(0.0, 3, [4, 4, 4]), (1.0, 15, [4, 4 + 4, 4 + 4])])
def test_a_window_is_drafted_in_one_pass_that_reads_what_was_accepted(rate, num_tokens, rows):
    [trace] = simulate(block(4), machine(), assumed(rate, num_tokens))
    assert [span.rows for span in trace.spans if span.work is Work.ROLLOUT_STEP] == rows


@pytest.mark.parametrize("num_tokens", [1, 3, 7])
def test_the_pass_costs_what_so_many_rows_cost(num_tokens):
    seconds = (1.0, 1.5, 2.5, 4.0, 4.5, 6.0, 8.0)
    found = predict(block(num_tokens), with_head(*seconds), assumed(0.0, 9))
    assert found.tpot_s == pytest.approx(VERIFY_S + seconds[num_tokens - 1])


@given(profiles(), st.integers(1, 4), st.floats(0, 1), st.sampled_from(["target", "draft"]))
@settings(deadline=None)
def test_both_worlds_agree(profile, num_tokens, rate, draft_lane):
    check(block(num_tokens, draft_lane=draft_lane), profile, assumed(rate), None)


def test_acceptance_is_that_of_chains_and_asked_for_by_name():
    long = Bernoulli(0.7, texts=Texts(num_texts=4, num_tokens=50_000), blocks=("head",))
    assert predict(block(4), machine(), long).mean_acceptance_length == pytest.approx(
        long.mean_acceptance_length(4), rel=1e-3
    )
    assert "windows of block of head are not assumed (`blocks` of a YAML file)" in str(Bernoulli(0.7).missing(block(4)))
