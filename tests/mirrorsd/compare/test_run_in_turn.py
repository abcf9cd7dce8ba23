"""Runs in turn with an engine that only notes what it is asked for, and on real lanes whose draft is killed."""

import os
import signal
from functools import partial
from types import SimpleNamespace

import pytest

from calibrate.profiling import anchors as anchors_module
from calibrate.profiling.anchors import Anchors
from calibrate.prompts import EncodedPrompt
from decoding.errors import LaneDiedError, LaneError, LaneTimeoutError, MemoryFitError
from decoding.schedule import Schedule
from decoding.trace import LaneEvent, Trace
from mirrorsd.compare.run_in_turn import run_in_turn
from runtime.lanes.sequence_lanes import NOBODY, Listener
from runtime.wire.operations import TimedReply
from tests.runtime.engine.schedules import PROMPT, SCHEDULES, for_folders, new_engine
from tests.runtime.forked import with_forked_lanes

LANES = ("target", "draft", "both")
PLAIN = Schedule(method="autoregressive", target_lane="target")
SPLIT = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2)
POOLED = Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=3)
OTHER = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=4)
PROMPTS = [EncodedPrompt(f"prompt {index}", "", (index,) * 3) for index in range(4)]


class Machine:
    """An engine and anchors; every run takes a second, in two rounds, and every anchor a tenth.

    A run of `lost_in` loses a lane in round `when`, 0 or 1, or after them: until it is loaded again it raises `loss`.
    """

    def __init__(self, lost_in=(), when=0, lane="draft", loss=LaneDiedError):
        self.now_s = 0.0
        self.done, self.loaded, self.compiled = [], [], []
        self._lost_in, self._when, self._losing, self._loss = list(lost_in), when, lane, loss
        self.lost = set()

    def generate(self, schedule, prompt, *, max_new_tokens, listener=NOBODY):
        self.done.append((schedule, max_new_tokens))
        is_lost = (schedule, prompt) in self._lost_in
        if is_lost:
            self._lost_in.remove((schedule, prompt))
        trace = Trace(world="measured")
        for place in range(3):
            if is_lost and place == self._when:
                self.lost.add(self._losing)
            elif is_lost and place == self._when + 1 and self._losing == "draft":
                trace.events.append(LaneEvent(0.1, "draft", "it was missed"))
            if place < 2:
                self.now_s += 0.5
                if listener.at_rest is not None:
                    listener.at_rest()
        trace.decode_s = self.now_s
        return SimpleNamespace(trace=trace, tokens=(7, 8))

    def load_target(self, lane):
        self.loaded.append(lane)
        self.lost.discard(lane)

    def compile_target(self, lane, exit_layer, drafters):
        assert (exit_layer, drafters) == (None, ()), "schedules that ran have compiled what they need"
        self.compiled.append((lane, len(self.done)))

    def lane(self, name):
        return Lane(self, name)

    def anchors(self):
        return Anchors({name: self.lane(name) for name in LANES}, context=64, clock=lambda: self.now_s)

    @property
    def measured_runs(self):
        """What was run, warming up left out."""
        return [schedule for schedule, num_tokens in self.done if num_tokens == 9]


class Lane:
    """Answers anchors while it is there."""

    def __init__(self, machine, name):
        self._machine, self._name, self._is_ended = machine, name, False

    @property
    def is_alive(self):
        return not self._is_ended or self._name not in self._machine.lost

    def kill(self, _reason):
        self._is_ended = True

    def request(self, _method, measurement=None):
        return SimpleNamespace(result=partial(self._result, measurement))

    def _result(self, measurement, timeout_s=None):
        machine = self._machine
        if self._name in machine.lost:
            assert timeout_s is not None, "nobody waits for an anchor for ever"
            self._is_ended = machine._loss is LaneDiedError or self._is_ended
            raise (LaneDiedError if self._is_ended else machine._loss)(f"lane {self._name!r} is lost")
        assert self._name in machine.loaded, "an anchor on a lane that may have been lost"
        if measurement is None:
            return TimedReply(None, 0.0, 0.1)
        machine.now_s += 0.1
        machine.done.append(("anchor", self._name))
        return TimedReply([0.001 * len(machine.done)] * measurement.repeats, 0.0, 0.1)


def run(machine, schedules, prompts=PROMPTS, **more):
    return run_in_turn(machine, schedules, prompts, machine.anchors(), **{"cuts": [9] * len(prompts)} | more)


def test_targets_have_graphs_for_the_single_rows_of_anchors_before_the_first_of_them():
    machine = Machine()
    run(machine, [PLAIN, SPLIT, POOLED])
    assert machine.compiled == [("target", 1), ("target", 2), ("both", 3)]
    assert machine.done.index(("anchor", "target")) == 3


def test_schedules_take_turns_on_every_prompt_and_warm_up_before():
    machine, shares = Machine(), []
    measured = run(machine, [PLAIN, SPLIT, POOLED], progress=lambda _step, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] < 1
    assert machine.done[:3] == [(PLAIN, 4), (SPLIT, 4), (POOLED, 4)]
    order = [PLAIN, SPLIT, POOLED, SPLIT, POOLED, PLAIN, POOLED, PLAIN, SPLIT, PLAIN, SPLIT, POOLED]
    assert machine.measured_runs == order
    assert measured.num_prompts == 4
    assert [len(row) for row in measured.runs] == [4, 4, 4]
    for row in measured.runs:
        assert [one.at_s for one in row] == sorted(one.at_s for one in row)


def test_schedules_of_the_same_lanes_follow_each_other_and_come_back_in_the_order_given():
    machine = Machine()
    measured = run(machine, [SPLIT, POOLED, OTHER], PROMPTS[:1])
    assert machine.measured_runs == [SPLIT, OTHER, POOLED]
    first, last, second = (row[0].at_s for row in measured.runs)
    assert first < second < last


def test_a_run_has_anchors_of_its_own_lanes_before_in_between_and_after():
    machine = Machine()
    ((plain,), (split,), (pooled,)) = run(machine, [PLAIN, SPLIT, POOLED], PROMPTS[:1]).runs
    assert {lane: len(taken) for lane, taken in plain.anchors.alone.items()} == {"target": 4}
    assert {lane: len(taken) for lane, taken in split.anchors.alone.items()} == {"target": 3, "draft": 3}
    assert {lane: len(taken) for lane, taken in pooled.anchors.alone.items()} == {"both": 4}
    for one in (plain, split, pooled):
        for taken in one.anchors.alone.values():
            assert list(taken) == sorted(set(taken)), "in the order of time, none twice"


def test_the_anchors_after_a_run_are_those_before_the_next_where_nothing_was_done_since():
    machine = Machine()
    ((first,), (second,)) = run(machine, [SPLIT, OTHER], PROMPTS[:1]).runs
    after, before = (
        {lane: taken[end] for lane, taken in one.anchors.alone.items()} for one, end in ((first, -1), (second, 0))
    )
    assert after["target"] == before["target"]
    assert after["draft"] == before["draft"]
    assert machine.done.count(("anchor", "target")) == (1 + 1 + 1) + (1 + 1)
    assert machine.done.count(("anchor", "draft")) == (1 + 1 + 1) + (1 + 1)


@pytest.mark.parametrize("loss", [LaneDiedError, LaneTimeoutError, LaneError])
@pytest.mark.parametrize(("when", "text"), [(0, "it was missed"), (1, "it was missed"), (2, "no anchors were taken")])
def test_a_run_that_loses_its_draft_is_made_once_more_and_both_are_kept(when, text, loss):
    machine = Machine(lost_in=[(SPLIT, PROMPTS[1].ids)], when=when, loss=loss)
    measured = run(machine, [SPLIT], PROMPTS[:3])
    kept = [one.given_up is not None for one in measured.runs[0]]
    assert kept == [False, True, False]
    repeated = measured.runs[0][1]
    (event,) = repeated.events
    assert text in event.text
    assert (repeated.trace.events, repeated.given_up.events[0].lane) == ([], "draft")
    assert all(len(taken) >= 2 for taken in repeated.anchors.alone.values())
    second = [place for place, what in enumerate(machine.done) if what == (SPLIT, 9)][1]
    again = [what for what in machine.done[second + 1 :] if what[0] != "anchor"]
    assert again[0] == (SPLIT, 4), "the lane that was started again is warmed up"
    warmed = machine.done.index((SPLIT, 4), second)
    repetition = machine.done.index((SPLIT, 9), warmed)
    assert ("anchor", "draft") in machine.done[warmed:repetition], "the speed is taken right before the repetition"


def test_a_run_that_loses_its_draft_twice_counts_with_the_anchors_of_the_target():
    machine = Machine(lost_in=[(SPLIT, PROMPTS[0].ids)] * 4)  # warming up as well
    ((one,),) = run(machine, [SPLIT], PROMPTS[:1]).runs
    assert [len(trace.events) for trace in (one.given_up, one.trace)] == [1, 1]
    assert {lane: len(taken) for lane, taken in one.anchors.alone.items()} == {"target": 3, "draft": 1}


def test_a_draft_that_cannot_be_loaded_again_ends_no_runs(monkeypatch):
    machine = Machine(lost_in=[(SPLIT, PROMPTS[0].ids)] * 2)
    load = machine.load_target

    def load_target(lane):
        if lane in machine.lost:
            raise LaneDiedError("it is too large")
        load(lane)

    monkeypatch.setattr(machine, "load_target", load_target)
    ((one, other),) = run(machine, [SPLIT], PROMPTS[:2]).runs
    assert one.anchors.alone["draft"] == other.anchors.alone["draft"] == ()
    machine.lost.add("target")
    with pytest.raises(LaneDiedError, match="too large"):
        run(machine, [SPLIT], PROMPTS[:2])


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_draft_without_room_ends_the_runs_of_its_schedule_alone(monkeypatch, is_lost):
    """As where another program has filled the memory of its device meanwhile, or a longer text needs more of it."""
    machine, steps = Machine(lost_in=[(SPLIT, PROMPTS[1].ids)] * is_lost), []
    generate = machine.generate

    def refusing(schedule, prompt, **options):
        if schedule == SPLIT and ("draft" in machine.lost or prompt == PROMPTS[2].ids):
            raise MemoryFitError("cuda:0 has no room")
        return generate(schedule, prompt, **options)

    monkeypatch.setattr(machine, "generate", refusing)
    monkeypatch.setattr(machine, "load_target", machine.loaded.append)
    split, plain = run(machine, [SPLIT, PLAIN], PROMPTS[:4], progress=lambda step, _: steps.append(step)).runs
    assert ([len(row) for row in (plain, split)], split[0].trace.events) == ([4, 2], [])
    told = [("it was missed", True)] * is_lost + [("cuda:0 has no room. No further prompts ran", False)]
    assert [(event.text, event.is_loss) for event in split[1].events] == told
    ends = [step.split("schedule ")[1] for step in steps if step.startswith("prompt ")]
    assert ends == ["1 of 2", "2 of 2"] * 3 + ["1 of 1"]
    with pytest.raises(MemoryFitError):
        run(machine, [SPLIT], PROMPTS[2:])


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("schedule", [PLAIN, POOLED, SPLIT])
def test_a_stopped_run_is_made_again_unless_there_is_no_room_for_that(monkeypatch, schedule, is_full):
    machine, stop = Machine(), LaneEvent(0.1, "target", "mirrorsd stood still for 9.0 s", is_loss=False)
    generate = machine.generate

    def stopped(schedule, prompt, **options):
        if machine.done.count((schedule, 9)) == 1 and options["max_new_tokens"] == 4 and is_full:
            raise MemoryFitError("another program took it")
        made = generate(schedule, prompt, **options)
        made.trace.events += [stop] * (machine.measured_runs == [schedule])
        return made

    monkeypatch.setattr(machine, "generate", stopped)
    ((one,),) = run(machine, [schedule], PROMPTS[:1]).runs
    assert list(one.events) == [stop]
    assert (one.given_up is None) == is_full


@pytest.mark.parametrize("schedule", [PLAIN, SPLIT])
def test_runs_end_where_the_targets_lane_is_lost(schedule):
    machine = Machine(lost_in=[(schedule, PROMPTS[1].ids)], lane="target")
    with pytest.raises(LaneDiedError, match="'target' is lost"):
        run(machine, [schedule])


@pytest.mark.parametrize(
    ("name", "blow", "text"),
    [
        ("speculative", signal.SIGKILL, "is lost: its process ended"),
        ("hybrid mirror", signal.SIGKILL, "is lost: its process ended"),
        ("speculative", signal.SIGSTOP, "is lost: nothing could be timed, lane 'small' has not answered for 5 s"),
    ],
)
def test_a_draft_that_dies_or_hangs_on_real_lanes_costs_a_repetition_alone(name, blow, text, tiny_folders, monkeypatch):
    """In the second rest, where an anchor on its lane is due."""
    numbers = {"_EVERY_S": 0.0, "_EVERY_ANCHORS": 0} | ({"_HANGS_S": 5.0} if blow == signal.SIGSTOP else {})
    for number, value in numbers.items():
        monkeypatch.setattr(anchors_module, number, value)
    schedule, rests = for_folders(SCHEDULES[name], tiny_folders), []
    with with_forked_lanes(new_engine(tiny_folders)) as engine:
        generate, lanes = engine.generate, {name: engine.lane(name) for name in ("big", "small")}

        def generate_and_strike(*given, listener=NOBODY, **named):
            def at_rest():
                rests.append(lanes["small"].process_id)
                if len(rests) == 2:
                    os.kill(rests[-1], blow)
                listener.at_rest()

            struck = listener if listener is NOBODY else Listener(at_rest=at_rest)
            return generate(*given, listener=struck, eos_token_ids=(), **named)

        monkeypatch.setattr(engine, "generate", generate_and_strike)
        prompts = [EncodedPrompt("first", "", tuple(PROMPT)), EncodedPrompt("second", "", tuple(PROMPT))]
        measured = run_in_turn(engine, [schedule], prompts, Anchors(lanes, context=12), cuts=[24, 24])
        ((first, second),) = measured.runs
    assert first.tokens == second.tokens
    assert text in first.given_up.events[0].text
    assert first.trace.events == []
    assert second.given_up is None


def test_before_every_prompt_some_schedules_may_be_left_out_and_none_ends_the_runs():
    asked = []

    def going_on(measured):
        asked.append((measured.num_prompts, measured.cuts))
        return [[PLAIN, SPLIT, POOLED], [PLAIN, POOLED], [POOLED, SPLIT], []][measured.num_prompts]

    machine = Machine()
    measured = run(machine, [PLAIN, SPLIT, POOLED], going_on=going_on, cuts=[9, 9, 8, 8])
    assert asked == [(0, ()), (1, (9,)), (2, (9, 9)), (3, (9, 9, 8))]
    assert machine.measured_runs == [PLAIN, SPLIT, POOLED, POOLED, PLAIN], "rotated, and what left does not come back"
    assert machine.done[-1][0] == "anchor"
    assert [what for what in machine.done if what[1] == 8] == [(POOLED, 8)]
    assert [len(row) for row in measured.runs] == [2, 1, 3]
    assert measured.num_prompts == 3
