"""Predictions of runs are for the machine's speed just before them, as far as seconds can show it."""

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import MemoryFitError
from decoding.schedule import Schedule
from mirrorsd.compare.present_pace import lasting_pace, paces_in_words, paces_now
from mirrorsd.compare.runs import expected_anchors
from sim.evaluator import predict
from tests.planner.synthetic import DRAFT_MIRROR, EXIT_MIRROR, acceptance_record, machine

RECORD = acceptance_record(num_prompts=3, num_tokens=24)
PROFILE = machine().model_copy(update={"pace_error": 0.105})
EXPECTED = expected_anchors(PROFILE)
SPLIT = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2)
seen_paces = st.floats(0.2, 5.0)


class Machine:
    """An engine and anchors whose lanes take in turn so many times what they took during calibration."""

    def __init__(self, **factors):
        self.now_s, self.taken = 0.0, []
        self._factors = {lane: cycle(own) for lane, own in factors.items()}
        self._ready = set()

    def load_target(self, lane):
        if lane not in self._factors:
            raise MemoryFitError(f"no room on {lane}")

    def compile_target(self, lane, *, exit_layer, drafters):
        assert exit_layer is None
        assert drafters == ()
        self._ready.add(lane)

    def take(self, lane):
        assert lane in self._ready, "an anchor would wait for its graph"
        seconds = next(self._factors[lane]) * EXPECTED[lane]
        self.now_s += seconds
        self.taken.append(lane)
        return seconds

    def paces(self, schedules=(SPLIT,), profile=PROFILE, runs_s=100.0):
        return paces_now(self, self, schedules, profile, runs_s=runs_s)


def test_lanes_are_timed_in_turn_for_a_share_of_the_runs_but_not_for_long():
    for runs_s, expected_s in ((100.0, 5.0), (1e6, 8.0)):
        one = Machine(target=[1.0], draft=[1.0])
        one.paces(runs_s=runs_s)
        assert one.now_s == pytest.approx(expected_s, abs=0.1)
        assert one.taken[:4] == ["draft", "target", "draft", "target"]


def test_however_short_the_runs_each_lane_has_three_anchors():
    one = Machine(target=[1.0], draft=[1.0])
    one.paces(runs_s=0.0)
    assert one.taken == ["draft", "target"] * 3


def test_each_lane_has_its_own_pace_and_a_pause_in_one_anchor_says_little():
    paces = Machine(target=[2.0, 2.0, 2.0, 2.0, 20.0], draft=[0.5]).paces()
    assert paces["target"] == pytest.approx(2.4, rel=0.03)
    assert paces["draft"] == pytest.approx(0.5, rel=0.02)


def test_a_lane_without_room_for_the_target_has_no_pace_if_it_only_drafts():
    assert Machine(target=[1.0]).paces() == {"target": pytest.approx(1.0)}
    with pytest.raises(MemoryFitError, match="no room on target"):
        Machine(draft=[1.0]).paces()


def lasting(*seen, pace_error=0.105):
    """What lasts of these paces, each seen in very many anchors."""
    return lasting_pace([*seen] * 1000, pace_error)


@given(seen_paces, seen_paces)
def test_the_pace_of_minutes_is_between_one_and_that_of_seconds_and_rises_with_it(one, other):
    found = lasting(one)
    assert min(1.0, one) <= found <= max(1.0, one)
    assert (found <= lasting(other)) or other < one


def test_small_changes_count_by_half_and_those_of_another_day_nearly_whole():
    assert lasting(1.03) == pytest.approx(1.03**0.62, abs=1e-3)
    assert lasting(0.8) == pytest.approx(0.81, abs=0.005)


def test_a_machine_whose_speed_does_not_change_has_no_other_pace_by_chance():
    assert lasting(1.04, pace_error=0.0) == 1.0


def test_few_anchors_that_differ_count_for_less_than_many():
    assert lasting(1.1, 1.7) == pytest.approx(1.4, abs=0.02)
    assert 1.0 < lasting_pace([1.1, 1.7], 0.105) < 1.25


@given(seen_paces)
def test_a_machine_at_half_its_speed_takes_twice_as_long_for_everything(pace):
    profile = PROFILE.model_copy(update={"links": (), "round_overhead_s": 0.0})
    slower = profile.at_paces(dict.fromkeys(EXPECTED, pace))
    for schedule in (SPLIT, EXIT_MIRROR, DRAFT_MIRROR):
        before, after = predict(schedule, profile, RECORD), predict(schedule, slower, RECORD)
        assert after.decode_s == pytest.approx(pace * before.decode_s)
        assert after.relative_error == pytest.approx(before.relative_error)
    assert expected_anchors(slower) == pytest.approx({lane: pace * time_s for lane, time_s in EXPECTED.items()})


def test_other_lanes_keep_their_times():
    slower = PROFILE.at_paces({"draft": 2.0})
    assert slower.lane("target") == PROFILE.lane("target")
    assert slower.lane("draft").dispatch_s == 2 * PROFILE.lane("draft").dispatch_s


def test_only_a_speed_that_changed_much_is_told():
    assert paces_in_words({"cpu0": 1.02, "cpu1": 0.95}) is None
    assert paces_in_words({"cpu0": 1.25, "cpu1": 1.0, "cpu2": 0.5}) == (
        "Just before the runs lanes had other speeds than during calibration, by the same work timed in both: "
        "cpu0 0.80×, cpu2 2×. Predicted times in the table are for these speeds."
    )
