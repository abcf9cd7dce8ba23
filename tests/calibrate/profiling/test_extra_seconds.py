"""What first steps of rollouts take more is found on a machine of laws, by lane and drafter, and is priced once."""

from dataclasses import replace

import pytest

from calibrate.profiling.extra_seconds import with_draft_waking
from tests.calibrate.profiling.test_decodings import MIRROR, PLAIN, SPECULATIVE, WITH_FEATURES, run_of

WAKE_S = 2e-3
THREADS = {"cpu0": 1, "cpu1": 1}


def waking(*schedules, head=None, wake_s=WAKE_S, drop=(), **laws):
    """The profile of runs of some schedules, all between the same two lanes."""
    runs, profiles = zip(*(run_of(one, draft_wake_s=wake_s, **laws) for one in schedules), strict=True)
    profile = profiles[0]
    lanes = tuple(lane.model_copy(update=dict.fromkeys(drop)) for lane in profile.lanes)
    return with_draft_waking(profile.model_copy(update={"lanes": lanes}), runs, head, THREADS)


def test_it_is_found_from_windows_with_and_without_features() -> None:
    """The second lane has 0.8 of the speed of the first, and drafts here."""
    lane = waking(*[SPECULATIVE, WITH_FEATURES] * 6).lane("cpu1")
    assert lane.draft_wake_s == pytest.approx(WAKE_S, rel=0.02)
    assert lane.head_wake_s == {}


def test_lanes_of_as_many_threads_share_it_relative_to_their_steps() -> None:
    profile = waking(*[SPECULATIVE] * 6)
    shares = [lane.draft_wake_s / lane.draft_step.seconds[0][0] for lane in profile.lanes]
    assert shares[0] == pytest.approx(shares[1])
    other = with_draft_waking(profile, [], None, {"cpu0": 1, "cpu1": 2})
    assert [lane.draft_wake_s for lane in other.lanes] == [0, 0]


@pytest.mark.parametrize("schedule", [PLAIN, MIRROR])
def test_without_rollouts_of_several_steps_nothing_is_said(schedule) -> None:
    profile = waking(schedule)
    assert [lane.draft_wake_s for lane in profile.lanes] == [0, 0]
    assert [lane.draft_step.relative_error for lane in profile.lanes] == [0, 0]


def test_first_steps_that_take_less_are_noise() -> None:
    profile = waking(*[SPECULATIVE] * 6, wake_s=-5e-4)
    assert [lane.draft_wake_s for lane in profile.lanes] == [0, 0]


def test_what_is_not_known_of_it_makes_steps_less_certain() -> None:
    once, often = (waking(*[SPECULATIVE] * count).lane("cpu1") for count in (1, 20))
    assert once.draft_step.relative_error > often.draft_step.relative_error == 0, "runs of laws do not scatter"
    assert once.draft_step_features.relative_error == once.draft_step.relative_error
    assert once.layer.relative_error == 0


def test_a_head_has_its_own() -> None:
    runs, profiles = zip(*(run_of(SPECULATIVE, draft_wake_s=WAKE_S) for _ in range(6)), strict=True)
    of_head = {"method": "eagle2", "drafter": "mine", "tree_size": 4, "tree_top_k": 4}
    runs = [replace(run, schedule=run.schedule.model_copy(update=of_head)) for run in runs]
    lanes = tuple(
        lane.model_copy(update={"heads": dict.fromkeys(("mine", "other"), lane.draft_step), "head_wake_s": {"x": 1}})
        for lane in profiles[0].lanes
    )
    profile = with_draft_waking(profiles[0].model_copy(update={"lanes": lanes}), runs, "mine", THREADS)
    lane = profile.lane("cpu1")
    assert lane.head_wake_s == {"x": 1, "mine": pytest.approx(WAKE_S, rel=0.02)}
    assert lane.draft_wake_s == 0
    once = with_draft_waking(profile, runs[:1], "mine", THREADS).lane("cpu1")
    assert once.heads["mine"].relative_error > once.heads["other"].relative_error == 0
    assert once.draft_step.relative_error == 0


def test_a_lane_without_the_drafter_has_none() -> None:
    profile = waking(*[SPECULATIVE] * 6, drop=("draft_step", "draft_step_features", "draft_start"), head="nobody")
    assert [lane.head_wake_s for lane in profile.lanes] == [{}, {}]
