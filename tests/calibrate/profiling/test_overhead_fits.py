"""Overheads are found on a machine of laws, by lane and drafter."""

from dataclasses import replace

import pytest

from calibrate.profiling.overhead_fits import with_exits, with_features, with_first_steps
from calibrate.profiling.run_times import level
from decoding.trace import Trace, Work
from hwprofiles.profile import Profile
from tests.calibrate.profiling.fake_machine.known_runs import (
    MIRROR,
    PLAIN,
    SPECULATIVE,
    WITH_FEATURES,
    run_of,
    value_of,
)

MORE_S = 2e-3
MIRROR_WITH_FEATURES = MIRROR.model_copy(update={"exit_features": True})
BACK = {"target_lane": "cpu1", "draft_lane": "cpu0"}


def runs_of(*schedules, **laws):
    """(runs of some schedules, the profile of their lanes)."""
    runs, profiles = zip(*(run_of(one, **laws) for one in schedules), strict=True)
    return list(runs), profiles[0]


def starting(*schedules, head=None, **laws) -> Profile:
    runs, profile = runs_of(*schedules, **({"first_step_s": MORE_S} | laws))
    return with_first_steps(profile, runs, head)


def exiting(*schedules, **laws) -> Profile:
    runs, profile = runs_of(*schedules, **laws)
    return with_exits(profile, runs)


def replying(*schedules, **laws) -> Profile:
    runs, profile = runs_of(*schedules, **laws)
    return with_features(profile, runs)


def seconds_of(profile: Profile, event: str, drafter: str | None = None) -> list[float]:
    return [lane.overhead(event, drafter).seconds for lane in profile.lanes]


def test_the_start_of_a_rollout_is_found_from_windows_with_and_without_features():
    profile = starting(*[SPECULATIVE, WITH_FEATURES] * 6)
    assert profile.lane("cpu1").overhead("first_step").seconds == pytest.approx(MORE_S, rel=0.02)
    shares = [lane.overhead("first_step").seconds / lane.draft_step.seconds[0][0] for lane in profile.lanes]
    assert shares[0] == pytest.approx(shares[1]), "lanes share it relative to their steps"


@pytest.mark.parametrize(("schedule", "more_s"), [(PLAIN, MORE_S), (MIRROR, MORE_S), (SPECULATIVE, -5e-4)])
def test_without_rollouts_of_several_steps_or_by_noise_there_is_none(schedule, more_s):
    profile = starting(*[schedule] * 6, first_step_s=more_s)
    assert [lane.overheads for lane in profile.lanes] == [{}, {}]
    assert [lane.draft_step.relative_error for lane in profile.lanes] == [0, 0]


def test_what_is_not_known_of_the_start_makes_steps_less_certain():
    once, often = (starting(*[SPECULATIVE] * count).lane("cpu1") for count in (1, 20))
    assert once.draft_step.relative_error > often.draft_step.relative_error == 0, "runs of laws do not scatter"
    assert once.draft_step_features.relative_error == once.draft_step.relative_error
    assert once.layer.relative_error == 0


def test_a_head_has_a_start_of_its_own_and_a_lane_without_it_none():
    runs, profile = runs_of(*[SPECULATIVE] * 6, first_step_s=MORE_S)
    of_head = {"method": "eagle2", "drafter": "mine", "tree_size": 4, "tree_top_k": 4}
    runs = [replace(run, schedule=run.schedule.model_copy(update=of_head)) for run in runs]
    lanes = tuple(
        lane.model_copy(update={"heads": dict.fromkeys(("mine", "other"), lane.draft_step)}) for lane in profile.lanes
    )
    profile = profile.model_copy(update={"lanes": lanes})
    lane = with_first_steps(profile, runs[:1], "mine").lane("cpu1")
    assert lane.overheads.keys() == {"first_step:mine"}
    assert lane.heads["mine"].relative_error > lane.heads["other"].relative_error == 0
    assert lane.draft_step.relative_error == 0
    often = with_first_steps(profile, runs, "mine")
    assert often.lane("cpu1").overhead("first_step", "mine").seconds == pytest.approx(MORE_S, rel=0.02)
    assert with_first_steps(profile, runs, "nobody") == profile


def test_what_a_prefix_takes_more_is_a_time_and_no_factor():
    """The second lane has 0.8 of the speed of the first; in its tables nothing changes."""
    schedules = [MIRROR, MIRROR.model_copy(update=BACK)]
    profile = exiting(*schedules * 6, prefix_more_s=MORE_S)
    assert seconds_of(profile, "exit") == pytest.approx([MORE_S, MORE_S / 0.8], rel=0.02)
    run, before = run_of(MIRROR, prefix_more_s=MORE_S)
    assert profile.lane("cpu0").exit == before.lane("cpu0").exit
    assert value_of(level(run, "cpu0", (Work.PREFIX,), profile)) == pytest.approx(1)


def test_the_time_from_a_prefix_to_its_suffix_is_the_exits():
    runs, profile = runs_of(*[MIRROR] * 6)
    late = [replace(run, trace=with_late_suffixes(run.trace, 1e-3)) for run in runs]
    assert seconds_of(with_exits(profile, late), "exit") == pytest.approx([1e-3, 0], rel=0.02)


def with_late_suffixes(trace: Trace, more_s: float) -> Trace:
    later = [
        span._replace(start_s=span.start_s + more_s, end_s=span.end_s + more_s) if span.work is Work.SUFFIX else span
        for span in trace.spans
    ]
    return replace(trace, spans=later)


def test_exits_that_never_ran_or_take_less_have_no_seconds():
    for schedule in (PLAIN, SPECULATIVE, MIRROR_WITH_FEATURES):
        assert [lane.overheads for lane in exiting(schedule, prefix_more_s=MORE_S).lanes] == [{}, {}]
    assert seconds_of(exiting(*[MIRROR] * 6, prefix_more_s=-5e-4), "exit") == [0, 0]


@pytest.mark.parametrize("schedule", [WITH_FEATURES, MIRROR_WITH_FEATURES])
def test_what_passes_take_more_that_reply_states_is_found_once_a_pass(schedule):
    profile = replying(PLAIN, SPECULATIVE, MIRROR, *[schedule] * 6, features_s=MORE_S)
    assert seconds_of(profile, "features") == [pytest.approx(MORE_S, rel=1e-3), 0]
    assert profile.lane("cpu1").overheads == {}, "it replied to nobody"
    _, before = run_of(schedule)
    assert profile.lane("cpu0").layer == before.lane("cpu0").layer


def test_a_target_that_takes_longer_in_all_of_its_passes_is_a_matter_of_levels():
    profile = replying(PLAIN, SPECULATIVE, MIRROR, target_in_run=1.2)
    assert [lane.overheads for lane in profile.lanes] == [{}, {}]
    assert seconds_of(replying(*[WITH_FEATURES] * 6, features_s=-5e-4), "features") == [0, 0]


def test_a_table_that_is_off_at_just_their_rows_does_not_hide_it():
    """Runs that differ in nothing else are off by as much."""
    runs, profile = runs_of(*[SPECULATIVE, WITH_FEATURES] * 6, features_s=MORE_S)
    lanes = tuple(lane.scaled({"layer": 1.05, "lm_head": 1.05}) for lane in profile.lanes)
    off = profile.model_copy(update={"lanes": lanes})
    compared, alone = (seconds_of(with_features(off, own), "features")[0] for own in (runs, runs[1::2]))
    assert compared == pytest.approx(1.05 * MORE_S, rel=1e-2)
    assert alone < 0.8 * MORE_S


def test_lanes_share_it_relative_to_their_own_passes():
    """Three runs of one lane and one of the other: what the other has alone is not told apart."""
    back = WITH_FEATURES.model_copy(update=BACK)
    profile = replying(*[WITH_FEATURES] * 3, back, features_s=MORE_S)
    assert seconds_of(profile, "features") == pytest.approx([MORE_S, MORE_S / 0.8], rel=1e-3)
    first, second = (lane.overhead("features").relative_error for lane in profile.lanes)
    assert first == second


def test_what_is_not_known_of_replying_is_an_error_of_its_own():
    once, often = (replying(*[WITH_FEATURES] * count, features_s=MORE_S).lane("cpu0") for count in (1, 20))
    assert once.overhead("features").relative_error > often.overhead("features").relative_error == pytest.approx(0)
    assert once.layer.relative_error == 0
