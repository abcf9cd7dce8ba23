"""Who can work at the same time as whom, by cores alone."""

from hypothesis import given
from hypothesis import strategies as st

from hwprofiles.host import LaneCores, split_lanes, split_pairs, whole_lanes

LANES = split_lanes((0, 1))
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


def test_lanes_that_are_pinned_to_nothing_share_no_core() -> None:
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
