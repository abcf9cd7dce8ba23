"""Two lanes are timed alone and side by side, in turn, and cost each other the ratio."""

from contextlib import contextmanager

import pytest

from calibrate.profiling.lane_pairs import measure_pairs
from calibrate.profiling.time_budget import Passes
from decoding.errors import LaneDiedError
from runtime.wire.measurement import Measurement
from runtime.wire.operations import Answer, Measure
from tests.calibrate.profiling.fake_machine import Done, FakeEngine, Laws

PAIRS = [("cpu0", "cpu1"), ("cpu1", "cpu0")]
SIZE = {"context": 20, "max_rows": 9, "source": "a test"}
NUM_PASSES = 3


def passes() -> Passes:
    return Passes(count=NUM_PASSES)


def lanes_of(engine: FakeEngine) -> dict:
    return {name: engine.load_draft(name) for name in engine.laws}


def test_each_side_of_each_pair_has_its_own_slowdown() -> None:
    engine = FakeEngine(
        {
            "cpu0": Laws(target_contended=1.1, step_contended=1.4),
            "cpu1": Laws(speed=0.5, target_contended=1.2, step_contended=1.3),
        }
    )
    found = measure_pairs(lanes_of(engine), PAIRS, **SIZE, passes=passes())
    assert {entry.lanes: entry.slowdown for entry in found} == {
        ("cpu0", "cpu1"): pytest.approx((1.1, 1.3)),
        ("cpu1", "cpu0"): pytest.approx((1.2, 1.4)),
    }
    assert {(entry.relative_error, entry.source) for entry in found} == {(0.0, "a test")}


def test_lanes_that_do_not_meet_cost_each_other_nothing() -> None:
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})
    found = measure_pairs(lanes_of(engine), PAIRS, **SIZE, passes=passes())
    assert [entry.slowdown for entry in found] == [pytest.approx((1.0, 1.0))] * 2


def test_pairs_take_turns_in_every_pass() -> None:
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})
    measure_pairs(lanes_of(engine), PAIRS, **SIZE, passes=passes())
    timed = [(lane, measurement.part) for lane, measurement in engine.visits]
    one_pass = [("cpu0", "verify")] * 2 + [("cpu1", "draft_step")] * 2
    one_pass += [("cpu1", "verify")] * 2 + [("cpu0", "draft_step")] * 2
    assert timed == one_pass * NUM_PASSES


@pytest.mark.parametrize(("max_rows", "rows"), [(2, 2), (9, 4)])
def test_no_verification_is_larger_than_schedules_have(max_rows: int, rows: int) -> None:
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})
    measure_pairs(lanes_of(engine), PAIRS, **SIZE | {"max_rows": max_rows}, passes=passes())
    verifications = [measurement for _, measurement in engine.visits if measurement.part == "verify"]
    assert {one.rows for one in verifications} == {rows}
    assert {one.context for one in verifications} == {20}


class ScriptedLane:
    """A lane that takes one second alone, and the next of the given numbers while another one works."""

    def __init__(self, *shared_s: float) -> None:
        self.shared_s = iter(shared_s)
        self.other: ScriptedLane | None = None
        self.is_busy = False

    def request(self, operation: Measure) -> Done:
        repeats = operation.measurement.repeats
        seconds = next(self.shared_s) if self.other is not None and self.other.is_busy else 1.0
        return Done(Answer([seconds] * repeats, 0.0, 0.0))

    @contextmanager
    def busy(self, measurement: Measurement):
        self.is_busy = True
        yield []
        self.is_busy = False


def test_one_disturbed_pass_widens_the_error_and_leaves_the_slowdown() -> None:
    one, two = ScriptedLane(1.1, 7.0, 1.1), ScriptedLane(1.5, 1.5, 1.5)
    one.other, two.other = two, one
    [found] = measure_pairs({"cpu0": one, "cpu1": two}, PAIRS[:1], **SIZE, passes=passes())
    assert found.slowdown == (1.1, 1.5)
    assert found.relative_error > 0.5


def test_a_lane_that_is_lost_ends_the_measuring() -> None:
    class Lost(ScriptedLane):
        def request(self, operation: Measure) -> Done:
            raise LaneDiedError("lane 'cpu1' is lost")

    with pytest.raises(LaneDiedError, match="lane 'cpu1' is lost"):
        measure_pairs({"cpu0": ScriptedLane(), "cpu1": Lost()}, PAIRS, **SIZE, passes=passes())
