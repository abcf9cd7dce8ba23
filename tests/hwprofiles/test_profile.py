from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from decoding.errors import ConfigError, OutOfRangeError, ProfileError
from hwprofiles.profile import (
    Contention,
    LaneProfile,
    LatencyTable,
    LinkProfile,
    Profile,
    load_profile,
    save_profile,
)

TABLE = LatencyTable(rows=(1, 4, 8), contexts=(32, 256), seconds=((1, 3), (4, 6), (5, 9)), source="test")
ROWS, CONTEXTS = st.integers(1, 8), st.floats(32, 256)


def test_grid_points_are_returned_as_measured() -> None:
    assert [[TABLE.at(rows, context) for context in TABLE.contexts] for rows in TABLE.rows] == [[1, 3], [4, 6], [5, 9]]


def test_between_grid_points_it_is_linear_in_rows_and_in_context() -> None:
    assert TABLE.at(2, 32) == pytest.approx(2)
    assert TABLE.at(1, 144) == pytest.approx(2)
    assert TABLE.at(6, 144) == pytest.approx((4 + 6 + 5 + 9) / 4)


@given(ROWS, CONTEXTS)
def test_interpolation_stays_within_what_was_measured(rows: int, context: float) -> None:
    assert 1 <= TABLE.at(rows, context) <= 9


@given(ROWS, ROWS, CONTEXTS, CONTEXTS)
def test_a_monotone_table_is_interpolated_monotonically(r0: int, r1: int, c0: float, c1: float) -> None:
    low = TABLE.at(min(r0, r1), min(c0, c1))
    assert low <= TABLE.at(max(r0, r1), max(c0, c1)) + 1e-12


@pytest.mark.parametrize(("rows", "context", "name"), [(0, 32, "rows 0"), (9, 32, "rows 9"), (1, 31, "context 31")])
def test_outside_the_grid_there_is_an_error_and_no_guess(rows: int, context: float, name: str) -> None:
    with pytest.raises(OutOfRangeError, match=rf"{name} is outside the measured .* \(test\)"):
        TABLE.at(rows, context)


@given(st.floats(0, 1e6))
def test_one_context_stands_for_all(context: float) -> None:
    head = LatencyTable(rows=(1, 2), contexts=(0,), seconds=((1,), (2,)), source="test")
    assert head.at(2, context) == 2


@pytest.mark.parametrize(
    ("rows", "contexts", "seconds"),
    [((2, 1), (0,), ((1,), (1,))), ((1, 1), (0,), ((1,), (1,))), ((1,), (0, 1), ((1,),)), ((1,), (0,), ((-1,),))],
)
def test_a_crooked_table_is_refused(rows: tuple, contexts: tuple, seconds: tuple) -> None:
    with pytest.raises(ValidationError):
        LatencyTable(rows=rows, contexts=contexts, seconds=seconds, source="test")


def profile(**changes: object) -> Profile:
    lanes = (
        LaneProfile(name="cpu0", device="generic-cpu", cores=(0,), dispatch_s=1e-4, layer=TABLE, exit={20: TABLE}),
        LaneProfile(name="cpu1", device="generic-cpu", cores=(1,), dispatch_s=2e-4, draft_step=TABLE),
    )
    link = LinkProfile(lanes=("cpu0", "cpu1"), latency_s=5e-5, bytes_per_s=2e9, source="test")
    contention = Contention(lanes=("cpu0", "cpu1"), slowdown=(1.02, 1.05), source="test")
    usual = {"lanes": lanes, "links": (link,), "contention": (contention,)}
    scalars = {"host": {"cpu_model": "x", "cores": [0, 1]}, "target": "t", "drafter": "d", "dtype": "bfloat16"}
    return Profile(**(scalars | usual | {"num_layers": 30, "relative_error": 0.03} | changes))


def test_a_profile_survives_its_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    save_profile(profile(), path)
    assert load_profile(path) == profile()
    assert load_profile(path).lane("cpu0").exit[20].at(1, 144) == 2


def test_a_lane_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(ProfileError, match="no lane 'gpu0'; it has cpu0, cpu1"):
        profile().lane("gpu0")


def test_links_and_contention_name_known_lanes_only() -> None:
    stray = LinkProfile(lanes=("cpu0", "npu"), latency_s=0, bytes_per_s=1, source="test")
    with pytest.raises(ValidationError, match="names the lane 'npu'; lanes are cpu0, cpu1"):
        profile(links=(stray,))


def test_slowdowns_are_those_of_the_roles_asked_for() -> None:
    one_way = Contention(lanes=("cpu0", "cpu1"), slowdown=(1.02, 1.05), source="test")
    other_way = Contention(lanes=("cpu1", "cpu0"), slowdown=(1.2, 1.5), source="test")
    for entries in ((one_way, other_way), (other_way, one_way)):
        assert profile(contention=entries).slowdown("cpu0", "cpu1") == (1.02, 1.05)
        assert profile(contention=entries).slowdown("cpu1", "cpu0") == (1.2, 1.5)


def test_a_pair_measured_one_way_round_stands_in_for_the_other_and_an_unknown_one_is_free() -> None:
    assert profile().slowdown("cpu1", "cpu0") == (1.05, 1.02)
    assert profile(contention=()).slowdown("cpu0", "cpu1") == (1.0, 1.0)


def test_two_lanes_of_one_name_are_refused() -> None:
    lane = LaneProfile(name="cpu0", device="x", dispatch_s=0)
    with pytest.raises(ValidationError, match="lane names repeat"):
        profile(lanes=(lane, lane), links=(), contention=())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("format: mirrorsd-profile-9\n")
    with pytest.raises(ConfigError, match="mirrorsd-profile-2"):
        load_profile(path)
