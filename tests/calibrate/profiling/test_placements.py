"""Who can work beside whom, and that what is fitted is judged by other schedules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.placements import check_schedules, fit_schedules, split_pairs, whole_lanes
from hwprofiles.host import LaneCores, split_lanes
from tests.calibrate.profiling.fake_machine import LANES

BOTH_KINDS = (False, True)
SETS_OF_LANES = st.lists(st.frozensets(st.integers(0, 5), max_size=4), min_size=1, max_size=5).map(
    lambda sets: tuple(
        LaneCores(name=f"lane{place}", cores=tuple(sorted(cores)), num_threads=1) for place, cores in enumerate(sets)
    )
)


def test_two_halves_and_their_whole_are_two_placements_split_and_one_pooled() -> None:
    assert split_pairs(LANES) == [("cpu0", "cpu1"), ("cpu1", "cpu0")]
    assert whole_lanes(LANES) == ["cpu0+1"]


def test_a_single_core_can_only_be_pooled() -> None:
    assert split_pairs(split_lanes((0,))) == []
    assert whole_lanes(split_lanes((0,))) == ["cpu0"]


def test_lanes_that_are_pinned_to_nothing_stand_beside_each_other() -> None:
    lanes = [LaneCores(name=name, cores=(), num_threads=1) for name in ("a", "b")]
    assert split_pairs(lanes) == [("a", "b"), ("b", "a")]
    assert whole_lanes(lanes) == ["a", "b"]


@given(SETS_OF_LANES)
def test_lanes_are_paired_both_ways_round_if_they_share_no_core(lanes) -> None:
    cores = {lane.name: set(lane.cores) for lane in lanes}
    pairs = set(split_pairs(lanes))
    expected = {(one, two) for one in cores for two in cores if one != two and cores[one].isdisjoint(cores[two])}
    assert pairs == expected


@given(SETS_OF_LANES)
def test_every_core_that_any_lane_has_is_in_a_whole_lane(lanes) -> None:
    whole = set(whole_lanes(lanes))
    covered = {core for lane in lanes if lane.name in whole for core in lane.cores}
    assert covered == {core for lane in lanes for core in lane.cores}


@pytest.mark.parametrize("max_window", [1, 3, 8])
@pytest.mark.parametrize("exit_layers", [(), (4, 6)])
def test_every_lane_and_every_placement_is_fitted_with_every_kind_of_step(max_window, exit_layers) -> None:
    schedules = fit_schedules(LANES, max_window, BOTH_KINDS, exit_layers)
    plain = [one.target_lane for one in schedules if one.method == "autoregressive"]
    assert plain == ["cpu0", "cpu1", "cpu0+1"]
    drafting = {(s.target_lane, s.draft_lane, s.exit_features) for s in schedules if s.method == "speculative"}
    placements = [("cpu0", "cpu1"), ("cpu1", "cpu0"), ("cpu0+1", "cpu0+1")]
    assert drafting == {(*placement, features) for placement in placements for features in BOTH_KINDS}
    mirrors = [one for one in schedules if one.method == "mirror"]
    assert [(one.target_lane, one.draft_lane) for one in mirrors] == placements[:2]
    assert {one.exit_layer for one in mirrors} == ({6} if exit_layers else {None})
    assert all(one.num_speculative_tokens <= max_window for one in schedules if one.draft_lane is not None)


@given(max_window=st.integers(3, 16), exit_layers=st.sampled_from([(), (4, 6)]))
def test_no_schedule_is_judged_by_itself(max_window, exit_layers) -> None:
    fitted = fit_schedules(LANES, max_window, BOTH_KINDS, exit_layers)
    checks = check_schedules(LANES, max_window, BOTH_KINDS, exit_layers)
    assert checks
    assert set(fitted).isdisjoint(checks)
    assert {(one.method, one.target_lane) for one in checks} == {
        (one.method, one.target_lane) for one in fitted if one.method != "autoregressive"
    }


def test_without_a_draft_plain_decoding_alone_is_fitted_and_nothing_checked() -> None:
    assert {one.method for one in fit_schedules(LANES, 4, (), (4,))} == {"autoregressive"}
    assert check_schedules(LANES, 4, (), (4,)) == []
