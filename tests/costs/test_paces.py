"""Rounds go through a few paces in turn where both lanes work at once."""

from itertools import pairwise
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costs.durations import DurationTables
from costs.paces import NUM_PACES, pace_of, paces
from costs.round_plan import RoundShape
from hwprofiles.bounds import MOST_PACE_SPREAD
from hwprofiles.profile import Profile
from sim.acceptance.replay import Replay
from sim.evaluator import predict
from sim.world import simulate
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import drawn
from tests.sim.worlds.schedules import mirror, speculative

CHAIN = mirror("draft", num_tokens=1, roots_per_row=(1, 1))
HITS = drawn(1, 1, num_tokens=40)


def unsteady(spread: float, *, layer: float = 1.0) -> Profile:
    """A target of ten layers, and a draft whose branches have one step after reading the window's last token."""
    draft = lane("draft").model_copy(update={"pace_spread": spread})
    return machine(lane("target", layer=layer, lm_head=0), draft)


@given(st.floats(0, MOST_PACE_SPREAD))
def test_paces_have_a_mean_of_one_and_the_spread_that_was_measured(spread):
    found = paces(spread)
    assert fmean(found) == pytest.approx(1)
    assert pstdev(found) == pytest.approx(spread, abs=1e-12)
    assert min(found) > 0


def test_every_text_goes_through_all_of_them_and_neighbours_begin_with_different_ones():
    numbers = np.arange(NUM_PACES)
    for prompt in range(3):
        found = pace_of(np.full(NUM_PACES, prompt), numbers, NUM_PACES).tolist()
        assert sorted(found) == numbers.tolist()
        assert found == [pace_of(prompt, number, NUM_PACES) for number in numbers.tolist()]
        assert found[0] != pace_of(prompt + 1, 0, NUM_PACES)


def test_steps_have_a_pace_and_passes_of_the_target_have_none():
    tables = DurationTables(unsteady(0.1), range(3, 6))
    found = tables.durations(CHAIN, RoundShape(1, 0))
    assert found.num_paces == NUM_PACES
    each = [pytest.approx([pace] * 3) for pace in paces(0.1)]
    assert np.split(found.step_s["one_row"], NUM_PACES) == each
    assert np.split(found.rollout_s[0], NUM_PACES) == each
    assert set(found.segments_s[0].tolist()) == {10}
    assert {len(one) for one in (found.segments_s[0], found.streams_s[0], found.catch_up_s[0])} == {3 * NUM_PACES}


@pytest.mark.parametrize("schedule", [speculative(2), speculative(2, draft_lane="target")])
def test_lanes_that_take_turns_have_none_for_they_would_average_out(schedule):
    steady, other = unsteady(0.0), unsteady(0.3)
    times = [predict(schedule, profile, HITS).prompt_decode_s for profile in (steady, other)]
    assert times[0] == times[1]
    assert DurationTables(other, range(3, 6)).durations(schedule, RoundShape(2, 0)).num_paces == 1


def test_what_waits_for_the_slower_of_two_waits_longer_than_at_the_mean_pace():
    """Two steps end just before the target, so that nothing would wait for them at their mean pace; all rounds miss."""
    target_s = 2.05
    steady, unsteady_ = (unsteady(spread, layer=target_s / 10) for spread in (0.0, 0.1))
    misses = drawn(1, 0, num_tokens=2 * (2 * NUM_PACES + 1))
    assert round_times(steady, misses) == pytest.approx([target_s + 1] * 2 * NUM_PACES)
    of_step = paces(0.1) * 2 + paces(0.1)[:1]
    expected = [max(target_s, 2 * pace) + after for pace, after in pairwise(of_step)]
    assert round_times(unsteady_, misses) == pytest.approx(expected)
    assert fmean(expected) > target_s + 1.05


def round_times(profile: Profile, acceptance: Replay) -> list[float]:
    """From the start of every round to that of the next one; arrays say the same of them together."""
    (trace,) = simulate(CHAIN, profile, acceptance)
    assert trace.decode_s == pytest.approx(predict(CHAIN, profile, acceptance).decode_s, abs=1e-9)
    return [after.start_s - before.start_s for before, after in pairwise(trace.rounds)]
