"""Errors that two schedules share leave the ratio of their times alone; all others do not."""

from dataclasses import replace
from math import hypot, isclose
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwprofiles.lane_profile import Overhead
from hwprofiles.profile import Contention, Profile
from sim.error_shares import ALL_TIMES, ErrorShare, ratio_error, relative_error
from sim.evaluator import predict
from tests.sim.worlds.at_random import profiles, records, schedules
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import MAX_WINDOW, TREES, prompt, record
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree

TEXTS = record(prompt("1010111", "0100000"))
ERRORS = st.dictionaries(st.sampled_from("abcd"), st.builds(ErrorShare, st.floats(0, 1), st.floats(0, 2)))


def wrong(profile: Profile, **fields: Any) -> Profile:
    """The same machine, all of whose lanes are given these fields."""
    return profile.model_copy(update={"lanes": tuple(one.model_copy(update=fields) for one in profile.lanes)})


@given(schedules(), profiles(), records())
@settings(deadline=None)
def test_shares_of_lanes_and_of_their_tables_are_all_but_messages_and_dispatch(schedule, profile, texts):
    found = predict(schedule, profile, texts)
    waits, errors = found.bottlenecks, found.errors
    others = (waits.channel + waits.overhead) / found.decode_s
    lanes = [one.share for cause, one in errors.items() if cause.startswith("lane ")]
    tables = [one.share for cause, one in errors.items() if " on " in cause]
    assert errors[ALL_TIMES] == (1.0, max(profile.relative_error, profile.pace_error))
    assert sum(lanes) + others == pytest.approx(1)
    assert sum(tables) + others == pytest.approx(1)
    assert all(-1e-12 <= one.share <= 1 + 1e-12 for one in errors.values())


@given(ERRORS, ERRORS)
def test_a_ratio_is_never_worse_than_two_times_that_share_nothing(one, other):
    assert ratio_error(one, other) == ratio_error(other, one)
    assert ratio_error(one, other) <= hypot(relative_error(one), relative_error(other)) + 1e-12
    apart = {f"other {cause}": share for cause, share in other.items()}
    assert isclose(ratio_error(one, apart), hypot(relative_error(one), relative_error(other)), abs_tol=1e-12)
    assert ratio_error(one, {}) == relative_error(one)
    assert ratio_error(one, one) == 0


def test_the_error_of_a_lane_cancels_where_both_do_all_their_work_on_it():
    profile = wrong(machine(), relative_error=0.3)
    plain = predict(AUTOREGRESSIVE, profile, TEXTS).errors
    pooled = predict(speculative(draft_lane="target"), profile, TEXTS).errors
    assert ratio_error(plain, pooled) == pytest.approx(0, abs=1e-12)
    # of 13 s a round, 2 on the other lane
    split = predict(speculative(), profile, TEXTS).errors
    assert ratio_error(plain, split) == pytest.approx(hypot(0.3 * 2 / 13, 0.3 * 2 / 13))


def test_a_table_that_one_alone_uses_does_not():
    table = lane("target").draft_step.model_copy(update={"relative_error": 0.3})
    profile = wrong(machine(), draft_step=table)
    plain, other = (predict(one, profile, TEXTS).errors for one in (AUTOREGRESSIVE, speculative()))
    assert ratio_error(plain, other) == pytest.approx(0.3 * 2 / 13)
    shorter = predict(speculative(1), profile, TEXTS).errors
    assert ratio_error(shorter, other) == pytest.approx(0.3 * (2 / 13 - 1 / 12))


def test_passes_that_reply_states_are_as_wrong_on_their_own_as_their_drafters_price():
    """So the error is left in the ratio to a schedule that reads none, and cancels where both read the same."""
    profile = wrong(
        machine(),
        overheads={
            "features": Overhead(seconds=0, relative_error=0.3),
            "features:head": Overhead(seconds=0, relative_error=0.2),
        },
    )
    reads, plain = (predict(speculative(exit_features=has), profile, TEXTS) for has in (True, False))
    assert plain.relative_error == 0
    assert reads.relative_error == pytest.approx(0.3 * reads.target_busy_s / reads.decode_s)
    assert ratio_error(reads.errors, plain.errors) == reads.relative_error
    shorter = predict(speculative(1, exit_features=True), profile, TEXTS)
    assert ratio_error(reads.errors, shorter.errors) == pytest.approx(0.3 * (11 / 12 - 11 / 13))
    texts = record(
        replace(prompt("1010"), tree_ranks=(np.zeros((4, TREES[4].depth), dtype=np.int32),)), trees=TREES[4:5]
    )
    head = predict(tree(TREES[4], 4), profile, texts)
    assert head.relative_error == pytest.approx(0.2 * head.target_busy_s / head.decode_s)
    assert ratio_error(reads.errors, head.errors) == pytest.approx(hypot(reads.relative_error, head.relative_error))


def test_guesses_are_as_wrong_as_the_worst_of_the_tables_they_need():
    hits = np.zeros((4, MAX_WINDOW), dtype=np.int32)
    guessing = record(replace(prompt("1010"), stream_hits=hits, feature_stream_hits=hits), num_streams=2)
    table = lane("draft").draft_streams.model_copy(update={"relative_error": 0.3})
    found = predict(speculative(draft_streams=1), wrong(machine(), draft_streams=table), guessing)
    assert found.errors["draft_step on draft"].relative_error == 0.3
    assert predict(speculative(), wrong(machine(), draft_streams=table), guessing).relative_error == 0


@pytest.mark.parametrize("lanes", [("target", "draft"), ("draft", "target")])
def test_while_both_lanes_compute_the_time_is_as_wrong_as_their_slowdown(lanes):
    entry = Contention(lanes=lanes, slowdown=(1.0, 1.0), relative_error=0.2, source="by hand")
    profile = machine(contention=(entry,))
    found = predict(mirror("draft"), profile, TEXTS)
    assert found.hidden_draft_s
    assert found.relative_error == pytest.approx(0.2 * found.hidden_draft_s / found.decode_s)
    assert predict(speculative(), profile, TEXTS).relative_error == 0


def test_what_slows_the_target_is_time_on_its_lane():
    entry = Contention(lanes=("target", "draft"), slowdown=(2.0, 1.0), source="by hand")
    found = predict(mirror("draft"), machine(contention=(entry,)), TEXTS)
    waits = found.bottlenecks
    assert waits.contention > 0
    assert found.errors["lane target"].share == found.target_busy_s / found.decode_s
    assert found.errors["lane draft"].share == (waits.draft + waits.fallback) / found.decode_s


def test_a_schedules_own_error_stays_in_a_ratio_and_is_once_in_a_time():
    own = machine().model_copy(update={"schedule_error": 0.05})
    both = speculative(2), speculative(3)
    before, after = ([predict(each, profile, TEXTS) for each in both] for profile in (machine(), own))
    assert [each.tpot_s for each in before] == [each.tpot_s for each in after]
    for then, now in zip(before, after, strict=True):
        assert isclose(now.relative_error, hypot(then.relative_error, 0.05))
    found = ratio_error(after[0].errors, after[1].errors)
    assert isclose(found, hypot(ratio_error(before[0].errors, before[1].errors), 0.05, 0.05))
    assert ratio_error(after[0].errors, after[0].errors) == 0
