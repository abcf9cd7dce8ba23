"""Between rounds a sequence may rest: lanes can be asked for something else, and neither text nor trace know of it."""

from dataclasses import replace

import pytest

from decoding.errors import LaneError
from runtime.lanes import sequence_lanes
from runtime.lanes.lane_calls import DraftCalls, TargetCalls
from runtime.lanes.lane_set import LaneSet
from runtime.lanes.sequence_lanes import Listener, TraceWriter
from runtime.wire.measurement import Measurement
from runtime.wire.stops import STOPS
from tests.runtime.engine.schedules import PROMPT, SCHEDULES, for_folders

NUM_TOKENS = 20
ANCHOR = Measurement(part="verify", rows=1, context=12, repeats=1, warm_up=0, is_aside=True)


@pytest.fixture(params=["engine", "coarse_engine"])
def engine_at_rest(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", SCHEDULES)
def test_work_aside_in_every_rest_leaves_text_and_rounds_as_they_are(engine_at_rest, tiny_folders, name):
    engine, schedule = engine_at_rest, for_folders(SCHEDULES[name], tiny_folders)
    lanes = [lane for lane in (schedule.target_lane, schedule.draft_lane) if lane]
    rests = []

    def at_rest():
        rests.append([second for lane in lanes for second in engine.load_target(lane).measure(ANCHOR)])

    def made(listener):
        found = engine.generate(schedule, PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=(), listener=listener)
        assert found.trace.events == []
        return found.tokens, [(one.num_drafted, one.num_committed, one.outcome) for one in found.trace.rounds]

    usual = made(Listener())
    assert made(Listener(at_rest=at_rest)) == usual
    assert len(rests) == len(usual[1]), "one in every round"
    assert all(seconds > 0 for one in rests for seconds in one)


def test_a_draft_is_not_timed_aside_and_goes_on_undisturbed(engine, tiny_folders):
    schedule = for_folders(SCHEDULES["speculative"], tiny_folders)
    step = replace(ANCHOR, part="draft_step")

    def at_rest():
        with pytest.raises(LaneError, match="draft_step cannot be timed aside"):
            engine.load_draft(schedule.draft_lane, schedule.drafter).measure(step)

    usual, found = (
        engine.generate(schedule, PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=(), listener=listener)
        for listener in (Listener(), Listener(at_rest=at_rest))
    )
    assert found.tokens == usual.tokens
    assert [one.outcome for one in found.trace.rounds] == [one.outcome for one in usual.trace.rounds]


class Clock:
    now_s = 100.0

    def perf_counter(self):
        return self.now_s


def test_a_rest_takes_no_time_of_the_trace(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(sequence_lanes, "time", clock)

    def written(rest_s):
        clock.now_s = 100.0
        writer = TraceWriter()
        clock.now_s += 2.0
        writer.begin()
        for _ in range(3):
            writer.begin_round(clock.now_s)
            clock.now_s += 1.0
            writer.steps("cpu1", [("rollout_step", clock.now_s - 0.5, clock.now_s - 0.25, 1)])
            writer.event("cpu1", "seen")
            writer.pause(lambda: setattr(clock, "now_s", clock.now_s + rest_s))
        return writer.trace

    usual, rested = written(0.0), written(50.0)
    assert rested == usual
    assert [span.start_s for span in rested.spans] == [0.5, 1.5, 2.5]
    assert rested.prefill_s == 2.0


def test_a_sequence_in_which_the_process_was_stopped_tells_it(monkeypatch):
    monkeypatch.setattr(STOPS, "total_s", 7.0)
    writer = TraceWriter()
    STOPS.total_s += 30.0  # while models were loaded
    writer.start()
    STOPS.total_s += 600.0
    (event,) = writer.finish("cpu0").events
    told = "mirrorsd stood still for 600.0 s, stopped or without a core, which times may hold"
    assert event[1:] == ("cpu0", told, False)
    assert TraceWriter().finish("cpu0").events == []


def test_a_stop_between_two_rounds_is_none_of_the_sequence(monkeypatch):
    monkeypatch.setattr(STOPS, "total_s", 7.0)
    writer = TraceWriter()
    writer.pause(lambda: setattr(STOPS, "total_s", 37.0))
    assert writer.finish("cpu0").events == []


def test_reading_the_prompt_begins_once_all_is_loaded_and_compiled(engine, tiny_folders, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(sequence_lanes, "time", clock)

    def taking(seconds, call):
        def taken(*given, **named):
            clock.now_s += seconds
            return call(*given, **named)

        return taken

    for owner, name, seconds in (
        (LaneSet, "load_draft", 30.0),
        (TargetCalls, "prepare", 30.0),
        (DraftCalls, "prepare", 30.0),
        (DraftCalls, "prefill", 2.0),
    ):
        monkeypatch.setattr(owner, name, taking(seconds, getattr(owner, name)))
    schedule = for_folders(SCHEDULES["speculative"], tiny_folders)
    found = engine.generate(schedule, PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=())
    assert found.trace.prefill_s == 2.0


def test_a_rest_that_fails_ends_the_sequence_and_the_next_one_is_right(engine, tiny_folders):
    schedule = for_folders(SCHEDULES["mirror from the exit"], tiny_folders)

    def fail():
        raise OverflowError

    with pytest.raises(OverflowError):
        engine.generate(schedule, PROMPT, max_new_tokens=NUM_TOKENS, listener=Listener(at_rest=fail))
    plain = engine.generate(SCHEDULES["autoregressive"], PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=())
    again = engine.generate(schedule, PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=())
    assert again.tokens == plain.tokens
