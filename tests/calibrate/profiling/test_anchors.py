"""Anchors are all kept, with their times; what a visit costs beyond the part is told apart from it."""

import pytest

from calibrate.profiling.anchors import Anchors, AnchorSample
from runtime.wire.measurement import Measurement
from runtime.wire.operations import Answer
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.lanes import Done
from tests.calibrate.profiling.fake_machine.laws import Laws

STEP = Measurement(part="draft_step", rows=3, context=10, repeats=2)


def test_an_anchor_is_a_verification_of_one_row_after_one_that_does_not_count():
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws(speed=2.0)})
    engine.now_s = 7.0
    anchors = Anchors({name: engine.load_target(name) for name in engine.laws}, context=55, clock=engine.clock)
    one_s = Laws().target_s("verify", 1, 55, None)
    assert anchors.take("cpu0") == pytest.approx(one_s)
    assert anchors.take("cpu1") == pytest.approx(one_s / 2)
    assert anchors.samples == [
        AnchorSample(0.0, "cpu0", pytest.approx(one_s)),
        AnchorSample(pytest.approx(2 * one_s), "cpu1", pytest.approx(one_s / 2)),
    ]
    assert anchors.now_s == pytest.approx(3 * one_s)


def test_an_anchor_of_the_draft_is_a_step_of_one_row_first_after_other_work():
    engine = FakeEngine({"cpu0": Laws()})
    anchors = Anchors({"cpu0": engine.load_draft("cpu0")}, context=55, clock=engine.clock)
    assert anchors.take_step("cpu0") == pytest.approx(Laws().step_s(1, 55))
    assert anchors.samples == []
    _, asked = engine.visits[-1]
    assert (asked.part, asked.rows, asked.context, asked.warm_up, asked.is_aside) == ("draft_step", 1, 55, 0, True)
    assert asked.repeats > 1, "later steps count too"


def test_every_anchor_warms_up_whatever_its_lane_did_before():
    """Decoding's passes follow each other; the first pass after other work takes longer than they do."""
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})
    anchors = Anchors({name: engine.load_target(name) for name in engine.laws}, context=55, clock=engine.clock)
    for _ in range(2):
        anchors.take("cpu0")
        anchors.take_shared(("cpu0", "cpu1"))
    assert [asked.warm_up for _, asked in engine.visits] == [1] * 6


class OneLane:
    """Says that a part took one and four seconds, and that it was busy for 5.5 of the 7 seconds that passed."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def perf_counter(self) -> float:
        return self.now_s

    def request(self, _, measurement: Measurement) -> Done:
        self.asked = measurement
        self.now_s += 7.0
        return Done(Answer([1.0, 4.0], 51.0, 56.5))


def test_a_visit_tells_the_times_of_the_part_and_what_lay_around_them(monkeypatch):
    lane = OneLane()
    monkeypatch.setattr("calibrate.profiling.anchors.time", lane)
    anchors = Anchors({"cpu0": lane}, context=10, clock=lane.perf_counter)
    assert anchors.visit("cpu0", STEP) == [1.0, 4.0]
    assert lane.asked == STEP
    assert anchors.take("cpu0") == 2.5
    assert anchors.dispatch_s == {"cpu0": [1.5, 1.5]}
    assert [sample.seconds for sample in anchors.samples] == [2.5]
