"""Every part has its turn, and what a visit costs beyond the part is told apart from it."""

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.profiling.time_budget import Passes
from calibrate.profiling.visits import Cell, message_costs, visit, visit_in_turn
from decoding.errors import LaneDiedError
from runtime.wire.measurement import Measurement
from runtime.wire.operations import Answer, Measure, Ping
from tests.calibrate.profiling.fake_machine import Done, FakeEngine, Laws

LANE_NAMES = ("a", "b", "c")
FEW = settings(max_examples=25)
NUM_CELLS = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any)


def verify(rows: int) -> Measurement:
    return Measurement(part="verify", rows=rows, context=10, repeats=2)


def cells_of(counts) -> list[Cell]:
    return [Cell(lane, verify(rows)) for lane, count in zip(LANE_NAMES, counts, strict=True) for rows in range(count)]


def visited(counts, passes: int):
    """(engine with its notes, samples, shares that progress was told)."""
    engine = FakeEngine({name: Laws(speed=1 + place) for place, name in enumerate(LANE_NAMES)})
    shares: list[float] = []
    lanes = {name: engine.load_target(name) for name in LANE_NAMES}
    samples = visit_in_turn(lanes, cells_of(counts), passes=Passes(count=passes), progress=shares.append)
    return engine, samples, shares


@FEW
@given(NUM_CELLS, st.integers(1, 4))
def test_every_cell_is_visited_once_a_pass_on_its_own_lane(counts, passes) -> None:
    engine, samples, _ = visited(counts, passes)
    assert Counter(engine.visits) == Counter({tuple(cell): passes for cell in cells_of(counts)})
    for cell in cells_of(counts):
        one_s = engine.laws[cell.lane].target_s("verify", cell.measurement.rows, 10, None)
        assert samples.seconds[cell] == [one_s] * 2 * passes
    for lane, count in zip(LANE_NAMES, counts, strict=True):
        assert len(samples.dispatch_s[lane]) == count * passes


@FEW
@given(NUM_CELLS, st.integers(2, 4))
def test_every_second_pass_runs_backwards(counts, passes) -> None:
    visits = visited(counts, passes)[0].visits
    size = len(visits) // passes
    rounds = [visits[start : start + size] for start in range(0, len(visits), size)]
    assert all(after == before[::-1] for before, after in pairwise(rounds))


@FEW
@given(NUM_CELLS)
def test_lanes_take_turns_until_they_run_out_of_cells(counts) -> None:
    lanes = [lane for lane, _ in visited(counts, 1)[0].visits]
    for place in range(max(counts)):
        turn = [name for name, count in zip(LANE_NAMES, counts, strict=True) if count > place]
        assert lanes[: len(turn)] == turn
        del lanes[: len(turn)]
    assert lanes == []


@FEW
@given(NUM_CELLS, st.integers(1, 4))
def test_progress_rises_with_every_visit_and_never_claims_the_end(counts, passes) -> None:
    shares = visited(counts, passes)[2]
    assert shares[0] == 0
    assert all(before < after for before, after in pairwise([*shares, 1.0]))


# Against a clock that only moves when a lane says so


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("calibrate.profiling.visits.time", clock)
    return clock


def test_a_visit_tells_the_times_of_the_part_and_what_lay_around_them(clock) -> None:
    class Lane:
        def request(self, operation) -> Done:
            assert operation == Measure(measurement=verify(3))
            clock.now_s += 7.0
            return Done(Answer([1.0, 2.0], 51.0, 56.5))

    assert visit(Lane(), verify(3)) == ([1.0, 2.0], 1.5)


class PingedLane:
    """A lane whose pings take one second, another one for each kilobyte, and whatever is added to single ones."""

    def __init__(self, clock: Clock, disturbed: dict[int, float]) -> None:
        self.clock = clock
        self.disturbed = disturbed
        self.asked: list[int] = []

    def request(self, operation) -> Done:
        assert isinstance(operation, Ping)
        num_bytes = sum(len(block.data) for block in operation.load)
        self.clock.now_s += 1 + num_bytes / 1000 + self.disturbed.get(len(self.asked), 0.0)
        self.asked.append(num_bytes)
        return Done(Answer(None, 0.0, 0.0))


@pytest.mark.parametrize("disturbed", [{}, {0: 9.0, 4: 9.0, 8: 9.0}])
def test_a_message_costs_what_it_takes_beyond_an_empty_one(clock, disturbed) -> None:
    lane = PingedLane(clock, disturbed)
    signal_bytes, features_bytes = 4 * 3 * (4 + 4), 4 * 16 * 2
    plain_s, loaded_s = message_costs(lane, num_rows=4, num_candidates=3, features=16, repeats=5)
    assert plain_s == pytest.approx(signal_bytes / 1000)
    assert loaded_s == pytest.approx((signal_bytes + features_bytes) / 1000)
    assert lane.asked == [0, signal_bytes, signal_bytes + features_bytes] * 5


def test_a_message_never_costs_less_than_nothing(clock) -> None:
    """Where an empty message happens to take longer, the difference is noise."""
    lane = PingedLane(clock, dict.fromkeys(range(0, 15, 3), 2.0))
    assert message_costs(lane, num_rows=4, num_candidates=3, features=16, repeats=5) == [0.0, 0.0]


def test_a_lane_that_is_lost_ends_the_measuring() -> None:
    def lost(*_: object) -> Done:
        raise LaneDiedError("lane 'a' is lost")

    with pytest.raises(LaneDiedError, match="lane 'a' is lost"):
        visit_in_turn({"a": SimpleNamespace(request=lost)}, cells_of((1, 0, 0)), passes=Passes(count=1))
