"""Runs in turn with an engine that only notes what it is asked for."""

from types import SimpleNamespace

import pytest

from calibrate.prompts import EncodedPrompt
from decoding.schedule import Schedule
from decoding.trace import LaneEvent, Round, Trace
from mirrorsd.compare.run_in_turn import run_in_turn
from mirrorsd.compare.speed_probe import SpeedProbe

PLAIN = Schedule(method="autoregressive", target_lane="target")
SPLIT = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2)
POOLED = Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=3)
OTHER = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=4)
PROMPTS = [EncodedPrompt(f"prompt {index}", "", (index,) * 3) for index in range(4)]
PROBE_PROMPT = (99,)


class Machine:
    """An engine and anchors; every run takes a second, every anchor a tenth, and a look's decoding a fifth."""

    def __init__(self, lost_in=()):
        self.now_s = 0.0
        self.asked, self.done, self.loaded = [], [], []
        self._lost_in = list(lost_in)

    def generate(self, schedule, prompt, *, max_new_tokens):
        is_look = prompt == PROBE_PROMPT
        self.now_s += 0.2 if is_look else 1.0
        self.done.append(("plain", schedule.target_lane) if is_look else (schedule, max_new_tokens))
        trace = Trace(world="measured", decode_s=0.2 if is_look else self.now_s)
        trace.rounds.append(Round(0.0, 0.2, 0, 0, 4, (0, 7), None))
        if (schedule, prompt) in self._lost_in:
            self._lost_in.remove((schedule, prompt))
            trace.events.append(LaneEvent(0.1, "draft", "it hung"))
        return SimpleNamespace(trace=trace, tokens=(7, 8))

    def load_target(self, lane):
        self.loaded.append(lane)

    def take(self, lane):
        assert self.loaded[-1] == lane, "an anchor on a lane that may have been lost"
        self.now_s += 0.1
        self.done.append(("anchor", lane))
        return 0.1

    def clock(self):
        return self.now_s

    @property
    def measured_runs(self):
        """What was run, warming up left out."""
        return [schedule for schedule, num_tokens in self.done if num_tokens == 9]


def run(machine, schedules, prompts=PROMPTS, **more):
    probe = SpeedProbe(machine, machine, PROBE_PROMPT, 4, clock=machine.clock)
    return run_in_turn(machine, schedules, prompts, probe, max_new_tokens=9, **more)


def test_schedules_take_turns_on_every_prompt_and_warm_up_before():
    machine = Machine()
    measured = run(machine, [PLAIN, SPLIT, POOLED])
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


def test_around_every_run_its_own_lanes_are_timed_before_and_after():
    measured = run(Machine(), [PLAIN, SPLIT, POOLED], PROMPTS[:2])
    for row, lanes in zip(measured.runs, (("target",), ("target", "draft"), ("both",)), strict=True):
        for one in row:
            before = [sample for sample in one.around if sample.at_s < one.at_s]
            after = [sample for sample in one.around if sample.at_s > one.at_s]
            for look in (before, after):
                assert {sample.lane for sample in look if sample.work == "anchor"} == set(lanes)
                assert [sample.lane for sample in look if sample.work == "plain"] == [lanes[0]]


def test_the_look_after_a_run_is_the_one_before_the_next_on_the_same_lanes():
    machine = Machine()
    measured = run(machine, [SPLIT, OTHER], PROMPTS[:1])
    (first,), (second,) = measured.runs
    shared = [sample for sample in first.around if sample in second.around]
    assert [(sample.work, sample.lane) for sample in shared] == [
        ("anchor", "target"),
        ("plain", "target"),
        ("anchor", "draft"),
    ]
    assert machine.done.count(("anchor", "draft")) == 3


def test_a_plain_step_is_the_time_per_token():
    measured = run(Machine(), [PLAIN], PROMPTS[:1])
    assert {sample.seconds for sample in measured.runs[0][0].around if sample.work == "plain"} == {0.2 / 4}


def test_a_run_that_loses_its_draft_is_made_once_more_and_both_are_kept():
    machine = Machine(lost_in=[(SPLIT, PROMPTS[1].ids)])
    measured = run(machine, [SPLIT], PROMPTS[:3])
    kept = [one.given_up is not None for one in measured.runs[0]]
    assert kept == [False, True, False]
    repeated = measured.runs[0][1]
    assert [event.text for event in repeated.events] == ["it hung"]
    assert (repeated.trace.events, repeated.given_up.events[0].lane) == ([], "draft")
    second = [place for place, what in enumerate(machine.done) if what == (SPLIT, 9)][1]
    again = machine.done[second + 1 :]
    assert again[0] == (SPLIT, 4), "the lane that was started again is warmed up"
    assert ("anchor", "draft") in again[1 : again.index((SPLIT, 9))], "the speed is taken right before the repetition"
    assert all(sample.at_s > measured.runs[0][0].at_s + 1 for sample in repeated.around)


def test_a_run_that_loses_its_draft_twice_counts_with_what_happened():
    lost = [(SPLIT, PROMPTS[0].ids)] * 4
    (one,) = run(Machine(lost_in=lost), [SPLIT], PROMPTS[:1]).runs[0]
    assert [event.text for event in one.events] == ["it hung", "it hung"]
    assert one.trace.events


def test_when_it_is_enough_every_schedule_has_done_the_same_prompts():
    asked = []

    def enough(num_prompts, prompt_s):
        asked.append((num_prompts, prompt_s))
        return num_prompts == 2

    measured = run(Machine(), [PLAIN, SPLIT], enough=enough)
    assert [num_prompts for num_prompts, _ in asked] == [1, 2]
    assert (measured.num_prompts, [len(row) for row in measured.runs]) == (2, [2, 2])
    # two runs, and three looks at the target's lane and two at the draft's; warming up is not counted
    assert asked[0][1] == pytest.approx(2 * 1.0 + 3 * 0.3 + 2 * 0.1)


def test_progress_never_runs_backwards():
    shares = []
    run(Machine(), [PLAIN, SPLIT], progress=lambda _step, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] < 1
