"""Anchors are all kept, with their times; those of a run are its lanes' in turn while it rests, and never too many."""

from itertools import pairwise

import pytest

from calibrate.profiling.anchors import Anchors, AnchorSample, RunAnchors, decode_with_anchors, lanes_of
from calibrate.profiling.run_times import slowdowns_in
from decoding.errors import LaneDiedError
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Contention
from runtime.wire.measurement import Measurement
from runtime.wire.operations import TimedReply
from runtime.wire.stops import STOPS
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.lanes import Done
from tests.calibrate.profiling.fake_machine.laws import Laws
from tests.planner.synthetic import DRAFT_MIRROR, machine

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


class OneLane:
    """Says that a part took one and four seconds, and that it was busy for 5.5 of the 7 seconds that passed."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def perf_counter(self) -> float:
        return self.now_s

    def request(self, _, measurement: Measurement) -> Done:
        self.asked = measurement
        self.now_s += 7.0
        return Done(TimedReply([1.0, 4.0], 51.0, 56.5))


def test_a_visit_tells_the_times_of_the_part_and_what_lay_around_them(monkeypatch):
    lane = OneLane()
    monkeypatch.setattr("calibrate.profiling.anchors.time", lane)
    anchors = Anchors({"cpu0": lane}, context=10, clock=lane.perf_counter)
    assert anchors.visit("cpu0", STEP) == [1.0, 4.0]
    assert lane.asked == STEP
    assert anchors.take("cpu0") == 2.5
    assert anchors.dispatch_s == {"cpu0": [1.5, 1.5]}
    assert [sample.seconds for sample in anchors.samples] == [2.5]


@pytest.mark.parametrize(("num_stops", "is_in_it"), [(1, False), (2, False), (3, True)])
def test_what_was_timed_while_this_process_was_stopped_is_timed_again_but_not_for_ever(
    monkeypatch, num_stops, is_in_it
):
    monkeypatch.setattr(STOPS, "total_s", 0.0)
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})

    def trouble(lane, _measurement, times_before):
        if times_before >= num_stops or lane == "cpu1":
            return 1.0
        STOPS.total_s += 30.0
        return 1000.0

    engine.trouble = trouble
    anchors = Anchors({name: engine.load_draft(name) for name in engine.laws}, context=55, clock=engine.clock)
    one_s, step_s = Laws().target_s("verify", 1, 55, None), Laws().step_s(3, 10)
    slower = pytest.approx(1000.0 if is_in_it else 1.0, rel=0.2)
    assert anchors.take_shared(("cpu0", "cpu1"))[0] / anchors.take_shared(("cpu0", "cpu1"))[0] == slower
    assert anchors.visit("cpu0", STEP)[0] / step_s == slower
    engine.times_before.clear()
    assert anchors.take("cpu0") / one_s == slower
    assert (len(anchors.samples), len(anchors.shared), len(anchors.dispatch_s["cpu0"])) == (1, 2, 2)
    assert is_in_it or anchors.samples[0].at_s >= 1000 * one_s, "when it was taken at last"


PLAIN = Schedule(method="autoregressive", target_lane="cpu0")
SPLIT = Schedule(method="speculative", target_lane="cpu0", draft_lane="cpu1", num_speculative_tokens=2)
POOLED = Schedule(method="speculative", target_lane="cpu0", draft_lane="cpu0", num_speculative_tokens=2)
MIRROR = DRAFT_MIRROR.model_copy(update={"target_lane": "cpu0", "draft_lane": "cpu1"})


def taken(
    schedule: Schedule, *, rests: int, round_s: float, speed: float = 1.0, other_speed: float = 1.0
) -> tuple[RunAnchors, Anchors, float]:
    """Of a sequence with so many rests; and how much time the anchors in it took."""
    engine = FakeEngine({"cpu0": Laws(speed=speed), "cpu1": Laws(speed=other_speed * speed)})
    anchors = Anchors({lane: engine.load_target(lane) for lane in engine.laws}, context=10, clock=engine.clock)
    in_it_s = 0.0

    def generate(listener) -> Trace:
        nonlocal in_it_s
        for _ in range(rests):
            engine.now_s += round_s
            before_s = engine.now_s
            listener.at_rest()
            in_it_s += engine.now_s - before_s
        return Trace(world="measured")

    _, found = decode_with_anchors(anchors, schedule, generate)
    return found, anchors, in_it_s


@pytest.mark.parametrize("schedule", [PLAIN, SPLIT, POOLED])
def test_lanes_that_take_turns_have_anchors_in_turn_and_none_at_once(schedule):
    found, anchors, _ = taken(schedule, rests=8, round_s=0.2)
    lanes = lanes_of(schedule)
    assert found.shared == ()
    assert {lane: len(own) for lane, own in found.alone.items()} == {lane: 2 + 8 // len(lanes) for lane in lanes}
    in_between = [one.lane for one in anchors.samples[len(lanes) : -len(lanes)]]
    assert all(one != other for one, other in pairwise(in_between)) or len(lanes) == 1


@pytest.mark.parametrize(("schedule", "expected"), [(PLAIN, ["cpu0"] * 3), (SPLIT, []), (MIRROR, [])])
def test_an_anchor_within_plain_decoding_leaves_the_target_as_its_next_row_needs_it(schedule, expected):
    assert taken(schedule, rests=3, round_s=0.2)[1]._lanes["cpu0"].machine.laid_out == expected


def test_lanes_at_work_at_once_have_anchors_at_once_as_often_as_alone():
    found, anchors, _ = taken(MIRROR, rests=8, round_s=0.2)
    assert len(found.shared) == 2 + 4
    assert {lane: len(own) for lane, own in found.alone.items()} == {"cpu0": 2 + 2, "cpu1": 2 + 2}
    assert {one.lanes for one in anchors.shared} == {("cpu0", "cpu1")}


def test_a_decoding_of_a_calibration_that_loses_its_draft_is_an_error():
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})
    lanes = {lane: engine.load_target(lane) for lane in engine.laws}

    def generate(_) -> Trace:
        lanes["cpu0"].is_alive, lanes["cpu1"].kill, lanes["cpu1"].request = True, str, lambda *_: Lost()
        return Trace(world="measured")

    class Lost:
        def result(self, _) -> None:
            raise LaneDiedError("lane 'cpu1' is lost")

    with pytest.raises(LaneDiedError, match="'cpu1' is lost"):
        decode_with_anchors(Anchors(lanes, context=10, clock=engine.clock), SPLIT, generate)


def test_short_rounds_do_not_rest_every_time():
    found, _, _ = taken(PLAIN, rests=100, round_s=0.01)
    assert 2 + 5 <= len(found.alone["cpu0"]) <= 2 + 9, "a second, and an anchor every 0.12 s"


@pytest.mark.parametrize("schedule", [PLAIN, MIRROR])
def test_where_steps_are_long_anchors_take_a_quarter_of_the_time_and_no_more(schedule):
    rests, round_s = 60, 1.0
    _, _, in_it_s = taken(schedule, rests=rests, round_s=round_s, speed=0.02)
    assert 0.1 < in_it_s / (rests * round_s + in_it_s) < 0.26


def test_what_lanes_cost_each_other_is_the_mean_at_once_over_the_mean_alone():
    anchors = RunAnchors({"cpu0": (1.0, 3.0), "cpu1": (1.0,)}, ((3.0, 1.0), (3.0, 2.0)))
    assert anchors.slowdown(MIRROR) == (1.5, 1.5)


@pytest.mark.parametrize(
    "anchors",
    [
        RunAnchors(),
        RunAnchors({"cpu0": (1.0,), "cpu1": (1.0,)}),
        RunAnchors({"cpu0": (1.0,), "cpu1": ()}, ((1.0, 1.0),)),
    ],
)
def test_without_either_nobody_knows(anchors):
    assert anchors.slowdown(MIRROR) is None


def profile_with(anchor_slowdown: tuple[float, float] | None):
    entry = Contention(lanes=("cpu1", "cpu0"), slowdown=(1.3, 1.1), anchor_slowdown=anchor_slowdown, source="a test")
    return machine().model_copy(update={"contention": (entry,)})


def test_slowdowns_of_a_run_are_those_of_calibration_times_what_anchors_say_has_changed():
    """The entry is of the same lanes the other way round."""
    now = RunAnchors({"cpu0": (1.0,), "cpu1": (1.0,)}, ((1.6, 1.2),))
    assert slowdowns_in(now, MIRROR, profile_with((1.2, 1.0))) == pytest.approx((1.1 * 1.6 / 1.0, 1.3 * 1.2 / 1.2))
    assert slowdowns_in(now, MIRROR, profile_with(None)) == (1.1, 1.3)
    assert slowdowns_in(RunAnchors(), MIRROR, profile_with((1.2, 1.0))) == (1.1, 1.3)
