"""Two lanes are timed alone and side by side, in turn, and cost each other the ratio; messages tell of their link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.levels import Level
from calibrate.profiling.anchors import Anchors, AnchorSample, SharedAnchor
from calibrate.profiling.lane_pairs import PAUSE_S, contention_of, link_of, measure_pairs, message_costs
from calibrate.profiling.samples import Samples, Together
from hwprofiles.profile import BYTES_PER_CANDIDATE, Contention
from runtime.wire.operations import TimedReply
from runtime.worker.server import LaneServer
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.lanes import Done
from tests.calibrate.profiling.fake_machine.laws import Laws

PAIRS = [("cpu0", "cpu1"), ("cpu1", "cpu0")]
NUM_PASSES = 3


def measured(engine: FakeEngine, *, max_rows: int = 9) -> Samples:
    lanes = {name: engine.load_draft(name) for name in engine.laws}
    anchors = Anchors(lanes, context=20)
    samples = Samples()
    for _ in range(NUM_PASSES):
        samples.together += measure_pairs(lanes, PAIRS, anchors, context=20, max_rows=max_rows)
    samples.anchors, samples.shared_anchors = anchors.samples, anchors.shared
    return samples


def found(samples: Samples) -> list[Contention]:
    return [contention_of(pair, samples, Level(), "a test") for pair in PAIRS]


def test_each_side_of_each_pair_has_its_own_slowdown():
    engine = FakeEngine(
        {
            "cpu0": Laws(target_contended=1.1, step_contended=1.4),
            "cpu1": Laws(speed=0.5, target_contended=1.2, step_contended=1.3),
        }
    )
    entries = found(measured(engine))
    assert {entry.lanes: entry.slowdown for entry in entries} == {
        ("cpu0", "cpu1"): pytest.approx((1.1, 1.3), rel=0.02),
        ("cpu1", "cpu0"): pytest.approx((1.2, 1.4), rel=0.02),
    }
    assert {entry.source for entry in entries} == {"a test"}
    assert [entry.relative_error for entry in entries] == pytest.approx([0.0, 0.0])


def test_either_side_is_timed_alone_at_the_same_time_and_alone_again():
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})
    measured(engine)
    timed = [(lane, "anchor" if measurement.is_aside else measurement.part) for lane, measurement in engine.visits]

    def of(target, draft):
        both = [(target, "anchor"), (draft, "anchor")]
        for lane, work, repeats in ((target, "verify", 1), (draft, "draft_step", 2)):
            own, anchor = [(lane, work)], [(lane, "anchor")]
            yield from [*own, *anchor, *both, *own * repeats, *both, *anchor, *own]

    assert timed == [*of("cpu0", "cpu1"), *of("cpu1", "cpu0")] * NUM_PASSES


def test_of_a_draft_next_to_a_busy_target_half_the_steps_come_after_a_rest():
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})
    measured(engine)
    rests = [measurement.pause_s for _, measurement in engine.visits if measurement.part == "draft_step"]
    assert rests == [0, 0, PAUSE_S, 0] * 2 * NUM_PASSES


@pytest.mark.parametrize(("max_rows", "rows"), [(2, 2), (9, 4)])
def test_no_verification_is_larger_than_schedules_have(max_rows, rows):
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws()})
    measured(engine, max_rows=max_rows)
    verifications = [measurement for _, measurement in engine.visits if measurement.part == "verify"]
    verifications = [one for one in verifications if not one.is_aside]
    assert {one.rows for one in verifications} == {rows}
    assert {one.context for one in verifications} == {20}


def test_a_drift_while_a_pair_is_timed_is_no_slowdown():
    one = Together(PAIRS[0], "target", alone_s=1.0, shared_s=1.2, alone_after_s=1.4)
    assert one.slowdown.value == pytest.approx(1.0)
    assert one.slowdown.doubt > 0.15


def samples_of(target: list[float], draft: list[float]) -> Samples:
    """Slowdowns as they came out, on a machine that kept its speed."""
    samples = Samples()
    for role, slowdowns in (("target", target), ("draft", draft)):
        samples.together += [Together(PAIRS[0], role, 1.0, one, 1.0) for one in slowdowns]
    return samples


@pytest.mark.parametrize("now", [1.0, 1.6])
def test_how_far_lanes_are_in_each_others_way_is_what_anchors_say_of_all_the_time(now):
    """The pair was timed while the lanes shared a core or did not; at all other times it was the other way round."""
    samples = Samples(anchors=[AnchorSample(0.0, lane, 1.0) for lane in ("cpu0", "cpu1")])
    samples.shared_anchors = [SharedAnchor(at_s, PAIRS[at_s % 2], (1.0 + at_s % 2, 1.2)) for at_s in range(40)]
    for role, more in (("target", 1.0), ("draft", 1.1)):
        samples.together += [Together(PAIRS[0], role, 1.0, more * now, 1.0, anchor_slowdown=now)] * 4
    entry = contention_of(PAIRS[0], samples, Level(), "a test")
    # on cpu0 half of the anchors took 1.0, the others 1.2; on cpu1 1.2 and 2.0
    assert entry.anchor_slowdown == pytest.approx((1.1, 1.6))
    assert entry.slowdown == pytest.approx((1.1, 1.1 * 1.6), rel=0.01)


def test_anchors_at_once_that_change_over_time_widen_the_error():
    def error(slow):
        samples = samples_of([1.0] * 3, [1.0] * 3)
        samples.anchors = [AnchorSample(0.0, lane, 1.0) for lane in ("cpu0", "cpu1")]
        taken = [slow if at_s < 20 else 1.0 for at_s in range(40)]
        samples.shared_anchors = [SharedAnchor(at_s, PAIRS[0], (one, one)) for at_s, one in enumerate(taken)]
        return contention_of(PAIRS[0], samples, Level(), "a test").relative_error

    assert error(1.6) > 0.1 + error(1.0)


def test_one_disturbed_pass_widens_the_error_and_makes_no_slowdown():
    usual = contention_of(PAIRS[0], samples_of([1.1, 1.1, 1.1], [1.5] * 3), Level(), "a test")
    disturbed = contention_of(PAIRS[0], samples_of([1.1, 7.0, 1.1], [1.5] * 3), Level(), "a test")
    assert usual.slowdown == pytest.approx((1.1, 1.5), rel=0.02)
    assert 1.0 <= disturbed.slowdown[0] < 1.5 * usual.slowdown[0]
    assert disturbed.relative_error > 2 * usual.relative_error


def test_few_comparisons_that_scatter_say_little_against_lanes_that_do_not_slow_each_other():
    scattering = contention_of(PAIRS[0], samples_of([1.0, 1.6, 1.3], [1.0] * 3), Level(), "a test")
    certain = contention_of(PAIRS[0], samples_of([1.29, 1.30, 1.31], [1.0] * 3), Level(), "a test")
    assert 1.0 < scattering.slowdown[0] < 1.15
    assert certain.slowdown[0] == pytest.approx(1.3, rel=0.02)


def test_pairs_whose_slowdowns_do_not_differ_share_what_all_of_them_say():
    samples = Samples()
    for pair, slowdowns in zip(PAIRS, ([1.1, 1.2, 1.3], [1.15, 1.25, 1.05]), strict=True):
        samples.together += [Together(pair, role, 1.0, one, 1.0) for one in slowdowns for role in ("target", "draft")]
    one, other = (contention_of(pair, samples, Level(), "a test").slowdown[0] for pair in PAIRS)
    assert one == other


def test_no_lane_is_faster_next_to_another():
    for sides in (([0.9, 1.05, 0.95], [0.8, 1.1, 0.9]), ([0.90, 0.91, 0.92], [0.80, 0.81, 0.82])):
        assert contention_of(PAIRS[0], samples_of(*sides), Level(), "a test").slowdown == (1.0, 1.0)


def test_the_drafts_slowdown_is_relative_to_its_level_in_runs():
    samples = samples_of([1.2] * 3, [1.19, 1.2, 1.21])
    alone = contention_of(PAIRS[0], samples, Level(), "a test").slowdown
    assert contention_of(PAIRS[0], samples, Level(1.1), "a test").slowdown == pytest.approx((alone[0], alone[1] / 1.1))
    assert contention_of(PAIRS[0], samples, Level(1.3, 0.1), "a test").slowdown == pytest.approx((alone[0], 1.0))


PAIR = ("a", "b")
PLAIN_BYTES = 5 * 9 * BYTES_PER_CANDIDATE


def features_bytes(width: int) -> int:
    return 2 * 5 * max(width, 1024)


class PingedLane:
    """A lane whose pings take one second, another one for each kilobyte, and whatever is added to single ones."""

    def __init__(self, disturbed: dict[int, float]) -> None:
        self.disturbed, self.asked, self.now_s = disturbed, list[int](), 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def request(self, method, load) -> Done:
        assert method is LaneServer.ping
        num_bytes = sum(len(block.data) for block in load)
        self.now_s += 1 + num_bytes / 1000 + self.disturbed.get(len(self.asked), 0.0)
        self.asked.append(num_bytes)
        return Done(TimedReply(None, 0.0, 0.0))


@pytest.mark.parametrize("disturbed", [{}, {0: 9.0, 4: 9.0, 8: 9.0, 13: 9.0}])
def test_a_message_costs_what_it_takes_beyond_an_empty_one(monkeypatch, disturbed):
    """The slowest tenth of each kind does not count."""
    lane = PingedLane(disturbed)
    monkeypatch.setattr("calibrate.profiling.lane_pairs.time", lane)
    assert message_costs(lane, 2048) == pytest.approx([(PLAIN_BYTES + more) / 1000 for more in (0, 2 * 5 * 2048)])
    assert lane.asked == [0, PLAIN_BYTES, PLAIN_BYTES + 2 * 5 * 2048] * 40


def test_a_message_never_costs_less_than_nothing(monkeypatch):
    """Where an empty message happens to take longer, the difference is noise."""
    lane = PingedLane(dict.fromkeys(range(0, 120, 3), 20.0))
    monkeypatch.setattr("calibrate.profiling.lane_pairs.time", lane)
    assert message_costs(lane, 0) == (0.0, 0.0)


@given(latency_s=st.floats(1e-5, 1e-2), bytes_per_s=st.floats(1e7, 1e9), feature_width=st.sampled_from([0, 700, 2048]))
def test_a_link_that_keeps_to_a_law_is_found_again_over_both_of_its_hops(latency_s, bytes_per_s, feature_width):
    loaded_bytes = features_bytes(feature_width)
    hop_s = [latency_s + num_bytes / bytes_per_s for num_bytes in (PLAIN_BYTES, PLAIN_BYTES + loaded_bytes)]
    link = link_of(PAIR, (hop_s[0], hop_s[1]), feature_width, "a test")
    if loaded_bytes / bytes_per_s > 1e-3 * hop_s[0]:
        assert link.latency_s == pytest.approx(2 * latency_s, rel=1e-3)
        assert link.bytes_per_s == pytest.approx(bytes_per_s / 2, rel=1e-3)
    assert (link.lanes, link.source) == (PAIR, "a test")


@pytest.mark.parametrize("hop_s", [(1e-4, 1e-4), (1e-4, 5e-5), (0.0, 0.0), (0.0, 1e-3)])
def test_noise_makes_neither_a_negative_latency_nor_an_endless_bandwidth(hop_s):
    link = link_of(PAIR, hop_s, 0, "a test")
    assert link.latency_s >= 0
    assert 0 < link.bytes_per_s < 1e16
