from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from costs.cost_model import cost_of
from costs.prices import pass_s
from decoding.errors import ConfigError, OutOfRangeError, ProfileError
from hwprofiles.lane_profile import LaneProfile, Overhead
from hwprofiles.latency_table import Anchor, BatchTable, LatencyTable
from hwprofiles.profile import Contention, LinkProfile, Profile, load_profile, save_profile

TABLE = LatencyTable(rows=(1, 4, 8), contexts=(32, 256), seconds=((1, 3), (4, 6), (5, 9)), source="test")
OF_BATCHES = BatchTable(
    num_bytes=(6, 7, 9),
    reading_s=(0.5, 2, 3),
    computing_s=(0.2, 1, 4),
    least_s=(1, 4, 5),
    own_reading_s=((0.1, 2.5), (1, 4), (2, 6)),
    own_computing_s=((0.4, 2), (2, 3), (1, 2)),
)
ANY_CONTEXT = LatencyTable(rows=(1, 2), contexts=(0,), seconds=((1,), (2,)), source="test")
ROWS, CONTEXTS = st.integers(1, 8), st.floats(32, 256)


def test_grid_points_are_returned_as_measured() -> None:
    assert [[TABLE.at(rows, context) for context in TABLE.contexts] for rows in TABLE.rows] == [[1, 3], [4, 6], [5, 9]]


def test_between_grid_points_it_is_linear_in_rows_and_in_context() -> None:
    assert TABLE.at(2, 32) == pytest.approx(2)
    assert TABLE.at(1, 144) == pytest.approx(2)
    assert TABLE.at(6, 144) == pytest.approx((4 + 6 + 5 + 9) / 4)


def test_before_any_context_the_line_through_both_ends_goes_on() -> None:
    def table(*seconds: float) -> LatencyTable:
        return TABLE.model_copy(update={"rows": (1,), "contexts": (100, 200, 300), "seconds": (seconds,)})

    assert TABLE.without_context(2)[0] == pytest.approx(2 - 2 * 32 / 224)
    assert table(5.0, 5.0, 7.0).without_context(1)[0] == 4.0, "steps of padded caches"
    assert table(5.0, 5.0, 4.0).without_context(1)[0] == 5.0, "no more than was measured"
    assert table(1.0, 5.0, 9.0).without_context(1)[0] == 0.0
    assert ANY_CONTEXT.without_context(2)[0] == 2
    with pytest.raises(OutOfRangeError, match="more than 8 rows"):
        TABLE.without_context(9)


@given(ROWS, ROWS, CONTEXTS, CONTEXTS)
def test_a_monotone_table_is_interpolated_monotonically_within_its_numbers(r0, r1, c0, c1) -> None:
    low, high = TABLE.at(min(r0, r1), min(c0, c1)), TABLE.at(max(r0, r1), max(c0, c1))
    assert 1 <= low <= high + 1e-12 <= 9 + 1e-9


@pytest.mark.parametrize(
    ("rows", "context", "what"),
    [
        (0, 32, "fewer than 1 rows"),
        (9, 32, "more than 8 rows"),
        (1, 31, r"contexts 31\.\.31, outside 32\.\.256,"),
        (1, 257, r"contexts 257\.\.257, outside 32\.\.256,"),
    ],
)
def test_outside_the_grid_there_is_an_error_and_no_guess(rows: int, context: float, what: str) -> None:
    with pytest.raises(OutOfRangeError, match=rf"{what} were not measured \(test\); calibrate or import a wider grid"):
        TABLE.at(rows, context)


@given(st.floats(1, 8), st.lists(CONTEXTS, min_size=1))
def test_many_contexts_are_answered_as_each_of_them_to_the_last_bit(rows: float, contexts: list[float]) -> None:
    assert TABLE.along(rows, np.array(contexts)).tolist() == [TABLE.at(rows, context) for context in contexts]


@given(st.integers(0, 10), st.lists(st.integers(0, 300), min_size=1))
def test_what_is_missing_is_what_is_refused(rows: int, contexts: list[int]) -> None:
    for table in (TABLE, ANY_CONTEXT, TABLE.model_copy(update={"rows": (2, 4, 8)})):
        asked = np.array(contexts, dtype=np.float64)
        reason = table.missing(rows, asked)
        if reason is None:
            assert table.along(rows, asked).shape == asked.shape
        else:
            with pytest.raises(OutOfRangeError) as error:
                table.along(rows, asked)
            assert str(error.value) == reason


@given(ROWS, CONTEXTS, st.floats(0.1, 10))
def test_a_scaled_table_answers_scaled_and_tells_the_same_of_itself(rows: int, context: float, factor: float) -> None:
    table, at = TABLE.model_copy(update={"batch": OF_BATCHES}), np.array([context])
    scaled = table.scaled(factor)
    assert scaled.at(rows, context) == pytest.approx(factor * table.at(rows, context))
    for found, known in ((scaled.shared(rows), table.shared(rows)), (scaled.own(rows, at), table.own(rows, at))):
        assert found[0] == known[0], "bytes stay"
        assert np.ravel(found[1:]) == pytest.approx(factor * np.ravel(known[1:]))
    assert scaled.model_copy(update={"seconds": table.seconds, "batch": table.batch}) == table
    assert LatencyTable.model_validate(scaled.model_dump()) == scaled


@pytest.mark.parametrize("change", [{"least_s": (1, 4)}, {"own_reading_s": ((1, 2), (1, 2), (1,))}])
def test_what_batches_share_is_of_the_tables_rows_and_contexts(change: dict[str, Any]) -> None:
    batch = OF_BATCHES.model_copy(update=change)
    with pytest.raises(ValidationError, match=f"batch.{next(iter(change))} must have as many rows as seconds"):
        LatencyTable.model_validate({**TABLE.model_dump(), "batch": batch.model_dump()})


@given(st.floats(0, 1e6))
def test_one_context_stands_for_all(context: float) -> None:
    assert ANY_CONTEXT.at(2, context) == 2
    assert ANY_CONTEXT.along(2, np.array([context, 0.0])).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("rows", "contexts", "seconds"),
    [((2, 1), (0,), ((1,), (1,))), ((1, 1), (0,), ((1,), (1,))), ((1,), (0, 1), ((1,),)), ((1,), (0,), ((-1,),))],
)
def test_a_crooked_table_is_refused(rows: tuple, contexts: tuple, seconds: tuple) -> None:
    with pytest.raises(ValidationError):
        LatencyTable(rows=rows, contexts=contexts, seconds=seconds, source="test")


@pytest.mark.parametrize("other", [2e-18, 1e-9, 100.0])
def test_a_time_of_another_order_than_all_others_is_refused(other: float) -> None:
    usual = {"rows": (1, 2), "contexts": (0,), "source": "test"}
    with pytest.raises(ValidationError, match="no part differs so much"):
        LatencyTable(seconds=((1e-5 if other > 1 else 1.0,), (other,)), **usual)
    assert LatencyTable(seconds=((0.0,), (1.0,)), **usual).at(1, 0) == 0, "what costs nothing"


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


def test_a_profile_survives_its_file_unchanged_and_shows_itself_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    lanes = tuple(lane.model_copy(update={"overheads": OVERHEADS}) for lane in profile().lanes)
    save_profile(profile(lanes=lanes), path)
    assert load_profile(path) == profile(lanes=lanes)
    assert load_profile(path).lane("cpu0").exit[20].at(1, 144) == 2
    assert repr(profile()) == "Profile(target='t', drafter='d', lanes=['cpu0', 'cpu1'])"


def test_a_profile_that_was_cut_short_is_refused(tmp_path):
    """Whatever is left of it, which may be all that a profile needs."""
    path = tmp_path / "p.yaml"
    save_profile(profile(), path)
    text = path.read_text()
    for kept in (len(text) - 2, len(text) - 5, len(text) // 2):
        path.write_text(text[:kept])
        with pytest.raises(ConfigError, match="p.yaml"):
            load_profile(path)
    path.write_text(text.rstrip())
    assert load_profile(path) == profile()


def test_lanes_are_found_and_named_once() -> None:
    with pytest.raises(ProfileError, match="no lane 'gpu0'; it has cpu0, cpu1"):
        profile().lane("gpu0")
    stray = LinkProfile(lanes=("cpu0", "npu"), latency_s=0, bytes_per_s=1, source="test")
    with pytest.raises(ValidationError, match="names the lane 'npu'; lanes are cpu0, cpu1"):
        profile(links=(stray,))
    lane = LaneProfile(name="cpu0", device="x", dispatch_s=0)
    with pytest.raises(ValidationError, match="lane names repeat"):
        profile(lanes=(lane, lane), links=(), contention=())


def test_slowdowns_are_those_of_the_roles_asked_for_however_they_were_measured() -> None:
    one_way = Contention(lanes=("cpu0", "cpu1"), slowdown=(1.02, 1.05), source="test")
    other_way = Contention(lanes=("cpu1", "cpu0"), slowdown=(1.2, 1.5), source="test")
    for entries in ((one_way, other_way), (other_way, one_way)):
        assert profile(contention=entries).slowdown("cpu0", "cpu1") == (1.02, 1.05)
        assert profile(contention=entries).slowdown("cpu1", "cpu0") == (1.2, 1.5)
    assert profile().slowdown("cpu1", "cpu0") == (1.05, 1.02)
    assert profile(contention=()).slowdown("cpu0", "cpu1") == (1.0, 1.0)


LANE = LaneProfile(
    name="cpu0",
    device="generic-cpu",
    dispatch_s=1e-4,
    layer=TABLE,
    lm_head=TABLE.scaled(3),
    exit={10: TABLE.scaled(2)},
    draft_step=TABLE.scaled(5),
)


def test_a_verification_is_its_layers_and_its_output_head() -> None:
    assert pass_s(cost_of(LANE), 30, 2, 40) == pytest.approx((30 + 3) * TABLE.at(2, 40))
    bare = LaneProfile(name="npu", device="x", dispatch_s=0, layer=TABLE)
    with pytest.raises(ProfileError, match="lane 'npu' has no measured lm_head"):
        pass_s(cost_of(bare), 30, 1, 32)


def test_some_parts_of_a_lane_are_scaled_and_no_others() -> None:
    scaled = LANE.scaled({"exit": 2, "draft_step": (1, 2, 3), "draft_step_features": 4})
    assert scaled.exit == {10: TABLE.scaled(4)}
    assert scaled.draft_step == TABLE.scaled((5, 10, 15))
    assert scaled.draft_step_features is None
    assert scaled.model_copy(update={"exit": LANE.exit, "draft_step": LANE.draft_step}) == LANE


OVERHEADS = {
    "exit": Overhead(seconds=2e-3, relative_error=0.2),
    "features": Overhead(seconds=3e-3),
    "features:h": Overhead(seconds=4e-3, relative_error=0.1),
}


def test_an_overhead_is_that_of_its_event_and_drafter_and_none_for_those_never_seen() -> None:
    lane = LANE.model_copy(update={"overheads": OVERHEADS})
    assert [lane.overhead("features", name).seconds for name in (None, "h", "x")] == [3e-3, 4e-3, 0]
    assert lane.overhead("features", "h").relative_error == 0.1
    assert lane.overhead("first_step") == Overhead(seconds=0.0)
    scaled = lane.with_overheads_scaled({"features": 2.0})
    assert [one.seconds for one in scaled.overheads.values()] == [2e-3, 6e-3, 8e-3]
    assert [one.relative_error for one in scaled.overheads.values()] == [0.2, 0, 0.1]


def test_an_event_that_stored_demos_have_is_passed_over() -> None:
    overheads = {"draft_round": {"seconds": 1e-3}, "first_step": {"seconds": 2e-3}}
    read = LaneProfile.model_validate(LANE.model_dump() | {"overheads": overheads}).overheads
    assert read == {"first_step": Overhead(seconds=2e-3)}


def test_a_link_known_one_way_round_serves_both_ways_and_its_own_way_first() -> None:
    (link,) = profile().links
    assert profile().link("cpu0", "cpu1") == profile().link("cpu1", "cpu0") == link
    assert profile(links=()).link("cpu0", "cpu1") is None
    back = LinkProfile(lanes=("cpu1", "cpu0"), latency_s=1, bytes_per_s=1, source="test")
    for links in ((link, back), (back, link)):
        assert (profile(links=links).link("cpu0", "cpu1"), profile(links=links).link("cpu1", "cpu0")) == (link, back)


SCALARS: dict[str, tuple[Any, ...]] = {
    "round_overhead_s": (-1e-9, 3601.0),
    "relative_error": (-0.1, 101.0),
    "memory_pool_bytes_per_s": (0.0, 0.5, 1e300),
    "features_bytes_per_row": (-1.0, 1e300),
    "calibration_s": (-1.0,),
    "num_layers": (0, 10**6),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in SCALARS.items() for value in values],
)
def test_a_number_that_no_machine_has_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        profile(**{field: value})


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (LinkProfile, "bytes_per_s", 0.5),
        (LinkProfile, "bytes_per_s", 1e300),
        (LinkProfile, "latency_s", 1e300),
        (Contention, "slowdown", (1.0, 0.009)),
        (Contention, "slowdown", (1001.0, 1.0)),
        (Anchor, "seconds", 0.0),
        (Anchor, "seconds", 3601.0),
        (LatencyTable, "seconds", ((3601.0,),)),
        (LatencyTable, "seconds", ((5e-324,),)),
        (LatencyTable, "rows", (-1,)),
        (LatencyTable, "contexts", (10**400,)),
        (LaneProfile, "overheads", {"branch_steps": Overhead(seconds=0.1)}),
        (LaneProfile, "overheads", {"branch_step:head": Overhead(seconds=0.1)}),
        (LaneProfile, "overheads", {"features:": Overhead(seconds=0.1)}),
        (Overhead, "seconds", -1e-9),
    ],
)
def test_nor_is_one_that_no_part_of_it_has(kind: type, field: str, value: object) -> None:
    usual: dict[type, dict[str, Any]] = {
        LinkProfile: {"lanes": ("cpu0", "cpu1"), "latency_s": 0.1, "bytes_per_s": 1.0, "source": "test"},
        Contention: {"lanes": ("cpu0", "cpu1"), "slowdown": (1.0, 1.0), "source": "test"},
        Anchor: {"context": 4, "seconds": 0.1},
        Overhead: {"seconds": 0.1},
        LaneProfile: {"name": "cpu0", "device": "generic-cpu", "dispatch_s": 0.0},
        LatencyTable: {"rows": (1,), "contexts": (0,), "seconds": ((0.1,),), "source": "test"},
    }
    kind(**usual[kind])
    with pytest.raises(ValidationError, match=field):
        kind(**usual[kind] | {field: value})


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("format: mirrorsd-profile-9\n")
    with pytest.raises(ConfigError, match="mirrorsd-profile-4"):
        load_profile(path)


@pytest.mark.parametrize("device", ["cuda:0", "openvino:GPU", "openvino:GPU.1", "openvino:NPU"])
def test_a_lane_that_is_plainly_no_cpu_and_does_not_say_its_kind_is_refused(tmp_path: Path, device: str) -> None:
    path, lane = tmp_path / "profile.yaml", LaneProfile(name="one", device=device, kind="npu", dispatch_s=0.0)
    save_profile(profile(lanes=(lane,), links=(), contention=()), path)
    assert load_profile(path).lane("one").kind == "npu"
    path.write_text(path.read_text().replace("kind: npu", ""))
    said = f"profile.yaml:.*the lane does not say which kind of device {device} is: calibrate again"
    with pytest.raises(ConfigError, match=said):
        load_profile(path)


@pytest.mark.parametrize("device", ["cpu", "openvino:CPU", "NVIDIA L4", "cuda:0 + cuda:1"])
def test_any_other_lane_without_a_kind_is_a_cpu(device: str) -> None:
    assert LaneProfile(name="one", device=device, dispatch_s=0.0).kind == "cpu"
