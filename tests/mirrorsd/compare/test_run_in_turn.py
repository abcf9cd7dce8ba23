"""Runs in turn with an engine that only notes what it is asked for."""

from types import SimpleNamespace

from calibrate.profiling.anchors import Anchors
from calibrate.prompts import EncodedPrompt
from decoding.schedule import Schedule
from decoding.trace import LaneEvent, Trace
from mirrorsd.compare.run_in_turn import run_in_turn
from runtime.lanes.sequence_lanes import NOBODY
from runtime.wire.operations import Answer

LANES = ("target", "draft", "both")
PLAIN = Schedule(method="autoregressive", target_lane="target")
SPLIT = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2)
POOLED = Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=3)
OTHER = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=4)
PROMPTS = [EncodedPrompt(f"prompt {index}", "", (index,) * 3) for index in range(4)]


class Machine:
    """An engine and anchors; every run takes a second, in two rounds, and every anchor a tenth."""

    def __init__(self, lost_in=()):
        self.now_s = 0.0
        self.done, self.loaded, self.cut = [], [], []
        self._lost_in = list(lost_in)

    def generate(self, schedule, prompt, *, max_new_tokens, listener=NOBODY):
        self.done.append((schedule, max_new_tokens))
        for _ in range(2):
            self.now_s += 0.5
            if listener.at_rest is not None:
                listener.at_rest()
        trace = Trace(world="measured", decode_s=self.now_s)
        if (schedule, prompt) in self._lost_in:
            self._lost_in.remove((schedule, prompt))
            trace.events.append(LaneEvent(0.1, "draft", "it hung"))
        return SimpleNamespace(trace=trace, tokens=(7, 8))

    def load_target(self, lane):
        self.loaded.append(lane)

    def cut_target(self, lane, layers, drafters):
        assert (layers, drafters) == ((), ()), "schedules that ran have cut where they need it"
        self.cut.append((lane, len(self.done)))

    def lane(self, name):
        return SimpleNamespace(request=lambda _, measurement: self._anchor(name, measurement))

    def _anchor(self, lane, measurement):
        assert lane in self.loaded, "an anchor on a lane that may have been lost"
        self.now_s += 0.1
        self.done.append(("anchor", lane))
        answer = Answer([0.001 * len(self.done)] * measurement.repeats, 0.0, 0.1)
        return SimpleNamespace(result=lambda: answer)

    def anchors(self):
        return Anchors({name: self.lane(name) for name in LANES}, context=64, clock=lambda: self.now_s)

    @property
    def measured_runs(self):
        """What was run, warming up left out."""
        return [schedule for schedule, num_tokens in self.done if num_tokens == 9]


def run(machine, schedules, prompts=PROMPTS, **more):
    return run_in_turn(machine, schedules, prompts, machine.anchors(), **{"cuts": [9] * len(prompts)} | more)


def test_targets_have_graphs_for_the_single_rows_of_anchors_before_the_first_of_them():
    machine = Machine()
    run(machine, [PLAIN, SPLIT, POOLED])
    assert machine.cut == [("target", 1), ("target", 2), ("both", 3)]
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


def test_a_run_that_loses_its_draft_is_made_once_more_and_both_are_kept():
    machine = Machine(lost_in=[(SPLIT, PROMPTS[1].ids)])
    measured = run(machine, [SPLIT], PROMPTS[:3])
    kept = [one.given_up is not None for one in measured.runs[0]]
    assert kept == [False, True, False]
    repeated = measured.runs[0][1]
    assert [event.text for event in repeated.events] == ["it hung"]
    assert (repeated.trace.events, repeated.given_up.events[0].lane) == ([], "draft")
    second = [place for place, what in enumerate(machine.done) if what == (SPLIT, 9)][1]
    again = [what for what in machine.done[second + 1 :] if what[0] != "anchor"]
    assert again[0] == (SPLIT, 4), "the lane that was started again is warmed up"
    warmed = machine.done.index((SPLIT, 4), second)
    repetition = machine.done.index((SPLIT, 9), warmed)
    assert ("anchor", "draft") in machine.done[warmed:repetition], "the speed is taken right before the repetition"


def test_after_every_prompt_some_schedules_may_be_left_out_and_none_ends_the_runs():
    asked = []

    def going_on(measured):
        asked.append((measured.num_prompts, measured.cuts))
        return [[PLAIN, POOLED], [POOLED, SPLIT], []][len(asked) - 1]

    machine = Machine()
    measured = run(machine, [PLAIN, SPLIT, POOLED], going_on=going_on, cuts=[9, 9, 8, 8])
    assert asked == [(1, (9,)), (2, (9, 9)), (3, (9, 9, 8))]
    assert machine.measured_runs == [PLAIN, SPLIT, POOLED, POOLED, PLAIN], "rotated, and what left does not come back"
    assert machine.done[-1][0] == "anchor"
    assert [what for what in machine.done if what[1] == 8] == [(POOLED, 8)]
    assert [len(row) for row in measured.runs] == [2, 1, 3]
    assert measured.num_prompts == 3
