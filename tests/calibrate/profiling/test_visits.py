"""Every part has its turn between two anchors of its lane."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.profiling.anchors import Anchors
from calibrate.profiling.samples import Cell
from calibrate.profiling.visits import visit_in_turn
from decoding.errors import LaneDiedError
from runtime.wire.measurement import Measurement
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.laws import Laws
from tests.calibrate.profiling.fake_machine.weather import Weather

LANE_NAMES = ("cpu0", "cpu1", "cpu0+1")
FEW = settings(max_examples=25)
NUM_CELLS = st.lists(st.integers(0, 12), min_size=3, max_size=3).filter(any)
ANCHOR_CONTEXT = 120


def verify(rows: int) -> Measurement:
    return Measurement(part="verify", rows=rows, context=10, repeats=2, warm_up=1)


def step(rows: int) -> Measurement:
    return Measurement(part="draft_step", rows=rows, context=10, repeats=4, warm_up=1)


def cells_of(counts) -> dict[str, list[Cell]]:
    """Verifications and steps by turns of five."""
    return {
        lane: [Cell(lane, (verify if rows % 10 < 5 else step)(1 + rows)) for rows in range(count)]
        for lane, count in zip(LANE_NAMES, counts, strict=True)
    }


def visited(cells: dict[str, list[Cell]], *, backwards: bool = False, **weather: float):
    """(engine with its notes, visits, anchors, shares that progress was told)."""
    engine = FakeEngine({name: Laws(speed=1 + place) for place, name in enumerate(LANE_NAMES)})
    engine.weather = Weather(**weather)
    lanes = {name: engine.load_draft(name) for name in LANE_NAMES}
    anchors, shares = Anchors(lanes, context=ANCHOR_CONTEXT, clock=engine.clock), []
    visits = list(visit_in_turn(cells, anchors, backwards=backwards, progress=shares.append))
    return engine, visits, anchors, shares


def is_anchor(measurement: Measurement) -> bool:
    return (measurement.part, measurement.rows, measurement.context) == ("verify", 1, ANCHOR_CONTEXT)


@FEW
@given(NUM_CELLS, st.booleans())
def test_every_cell_is_visited_once_on_its_own_lane(counts, backwards):
    cells = cells_of(counts)
    engine, visits, anchors, _ = visited(cells, backwards=backwards)
    assert Counter(visit.cell for visit in visits) == Counter(cell for own in cells.values() for cell in own)
    for visit in visits:
        laws, of = engine.laws[visit.cell.lane], visit.cell.measurement
        one_s = laws.step_s(of.rows, 10) if of.part == "draft_step" else laws.target_s("verify", of.rows, 10, None)
        assert visit.seconds == (one_s,) * of.repeats
    assert {lane: len(found) for lane, found in anchors.dispatch_s.items()} == Counter(
        lane for lane, _ in engine.visits
    )


@FEW
@given(NUM_CELLS, st.booleans())
def test_every_visit_lies_between_two_anchors_of_its_lane(counts, backwards):
    """As much as the machine changes its speed: what stands with a visit are the anchors nearest to it."""
    _, visits, anchors, _ = visited(cells_of(counts), backwards=backwards, slow=1.4, fast_s=0.3, slow_s=0.2)
    for visit in visits:
        before = [one for one in anchors.samples if one.lane == visit.cell.lane and one.at_s < visit.at_s]
        after = [one for one in anchors.samples if one.lane == visit.cell.lane and one.at_s >= visit.at_s]
        assert (visit.before_s, visit.after_s) == (before[-1].seconds, after[0].seconds)


@FEW
@given(NUM_CELLS, st.booleans())
def test_no_more_than_two_parts_of_the_target_or_four_short_ones_share_their_anchors(counts, backwards):
    visits = [measurement for _, measurement in visited(cells_of(counts), backwards=backwards)[0].visits]
    blocks = [[]]
    for measurement in visits:
        if is_anchor(measurement):
            blocks.append([])
        else:
            blocks[-1].append(measurement.part)
    weights = [sum(1 if part == "draft_step" else 2 for part in block) for block in blocks]
    assert max(weights) <= 4


def test_lanes_take_turns_of_a_few_blocks_and_an_anchor_serves_two_of_them():
    cells = {"cpu0": [Cell("cpu0", verify(1 + rows)) for rows in range(10)], "cpu1": [Cell("cpu1", verify(1))]}
    visits = [(lane, 0 if is_anchor(of) else of.rows) for lane, of in visited(cells)[0].visits]
    first = [("cpu0", at) for at in (0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 8, 0)]
    assert visits == [*first, *(("cpu1", at) for at in (0, 1, 0)), *(("cpu0", at) for at in (0, 9, 10, 0))]


@FEW
@given(NUM_CELLS)
def test_backwards_every_lane_has_its_cells_in_the_other_order(counts):
    forwards, back = (visited(cells_of(counts), backwards=backwards)[1] for backwards in (False, True))

    def order(visits, lane):
        return [visit.cell for visit in visits if visit.cell.lane == lane]

    assert all(order(back, lane) == order(forwards, lane)[::-1] for lane in LANE_NAMES)


@FEW
@given(NUM_CELLS, st.booleans())
def test_progress_rises_and_never_claims_the_end(counts, backwards):
    shares = visited(cells_of(counts), backwards=backwards)[3]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] < 1


def test_a_lane_that_is_lost_ends_the_measuring():
    def lost(*_):
        raise LaneDiedError("lane 'cpu0' is lost")

    anchors = Anchors({"cpu0": SimpleNamespace(request=lost)}, context=10)
    with pytest.raises(LaneDiedError, match="lane 'cpu0' is lost"):
        list(visit_in_turn({"cpu0": [Cell("cpu0", verify(1))]}, anchors, backwards=False))
