"""A draft that is lost costs time alone: the target goes on with the same text. A lost target hands over its text."""

import os
import random
import signal
import time
from contextlib import contextmanager, suppress
from functools import wraps
from threading import Timer

import pytest

from decoding.errors import ConfigError, LaneDiedError, LaneError, LaneTimeoutError, MemoryFitError, ModelError
from runtime.backends.lane_device import Device
from runtime.lanes import lane, lane_set
from runtime.lanes.lane import Lane
from runtime.lanes.lane_calls import Deadline
from runtime.lanes.sequence_lanes import Listener
from runtime.wire.channel import Block
from runtime.wire.operations import TimedReply
from runtime.wire.stops import STOPS
from runtime.worker.roles import DraftRole
from runtime.worker.server import LaneServer
from tests.runtime import plain
from tests.runtime.engine.schedules import (
    AUTOREGRESSIVE,
    POOLED,
    PROMPT,
    SCHEDULES,
    for_folders,
    new_engine,
    speculative,
)
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.unknown import Unknown

pytestmark = pytest.mark.usefixtures("forked_lanes")


def kill(process_id):
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)


def stop(process_id):
    os.kill(process_id, signal.SIGSTOP)


def assert_ended(process_id):
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)


def after(num_rounds, act):
    """Do something once, after so many commits."""
    left = num_rounds

    def on_tokens(_):
        nonlocal left
        if left == 0:
            act()
        left -= 1

    return Listener(on_tokens=on_tokens)


def after_tokens(count, said, act):
    """Keep what is said, and do something from so many tokens on."""

    def on_tokens(tokens):
        said.extend(tokens)
        if len(said) >= count:
            act()

    return Listener(on_tokens=on_tokens)


@pytest.mark.parametrize(
    ("name", "rounds_before"),
    [("speculative", 0), ("speculative with features", 2), ("mirror from the exit", 3), ("hybrid mirror", 0)],
)
def test_a_dead_draft_leaves_the_text_as_it_was(run, engine, name, rounds_before):
    expected = run(SCHEDULES[name], eos_token_ids=()).tokens
    listener = after(rounds_before, lambda: kill(engine.lane("small").process_id))
    found = run(SCHEDULES[name], eos_token_ids=(), listener=listener)
    assert found.tokens == expected
    (event,) = found.trace.events
    assert event.lane == "small"
    assert "the target goes on alone" in event.text
    assert found.trace.rounds[-1].num_drafted == 0
    assert run(SCHEDULES[name], eos_token_ids=()).trace.events == []  # the lane is there again


def test_a_draft_killed_at_any_moment_leaves_a_text_in_bfloat16_as_it_was(coarse_engine, tiny_folders):
    """To the last token: a target that goes on alone computes its rows as it did among others."""
    moments = random.Random(0)
    expected = coarse_engine.generate(AUTOREGRESSIVE, PROMPT, max_new_tokens=60, eos_token_ids=()).tokens
    for name in ("speculative", "mirror from the draft", "hybrid mirror", "mirror with features"):
        schedule = for_folders(SCHEDULES[name], tiny_folders)
        timer = Timer(moments.uniform(0, 0.2), kill, (coarse_engine.load_draft("small", schedule.drafter).process_id,))
        timer.start()
        assert coarse_engine.generate(schedule, PROMPT, max_new_tokens=60, eos_token_ids=()).tokens == expected
        timer.join()


@pytest.mark.parametrize(("name", "rounds_before"), [("speculative", 0), ("mirror from the exit", 2)])
def test_an_operation_that_fails_in_the_drafts_lane_costs_time_alone(run, engine, tiny_folders, name, rounds_before):
    failed = []

    def fail():
        failed.append(engine.lane("small").process_id)
        engine.lane("small").post(Unknown.dance)

    found = run(SCHEDULES[name], max_new_tokens=20, eos_token_ids=(), listener=after(rounds_before, fail))
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, PROMPT, 20)
    drafted = [entry.num_drafted for entry in found.trace.rounds]
    assert drafted[: rounds_before + 1] == [4] * (rounds_before + 1)
    assert set(drafted[rounds_before + 1 :]) == {0}
    (event,) = found.trace.events
    assert event.lane == "small"
    assert "this lane has no operation 'Unknown.dance'" in event.text
    assert event.text.endswith("; the target goes on alone")
    assert not engine.lane("small").is_alive
    again = run(SCHEDULES[name], max_new_tokens=20, eos_token_ids=()).trace
    assert (again.events, {entry.num_drafted for entry in again.rounds}) == ([], {4})
    assert [engine.lane("small").process_id] != failed


@pytest.mark.parametrize(("name", "num_fine"), [("prepare", 0), ("rollout", 2)])
def test_a_draft_whose_device_is_full_is_lost_as_any_that_fails(tiny_folders, monkeypatch, name, num_fine):
    method, left = getattr(DraftRole, name), [True] * num_fine

    @wraps(method)
    def fail_in_the_end(*given, **named):
        if not left:
            raise MemoryFitError("cuda:0 has no room for a call of 8 rows")
        left.pop()
        return method(*given, **named)

    monkeypatch.setattr(DraftRole, name, fail_in_the_end)
    monkeypatch.setattr(Device, "prepares", name == "prepare")
    with thread_engine(tiny_folders.target, drafter_folder=tiny_folders.drafter) as engine:
        found = engine.generate(speculative(), PROMPT, max_new_tokens=20, eos_token_ids=())
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, PROMPT, 20)
    (event,) = found.trace.events
    assert event.text == "cuda:0 has no room for a call of 8 rows; the target goes on alone"


@pytest.mark.parametrize("name", ["speculative", "mirror from the exit"])
def test_a_draft_that_hangs_is_given_up(run, engine, tiny_folders, monkeypatch, name):
    monkeypatch.setattr(engine, "_draft_deadline_s", 0.5)
    expected = run(AUTOREGRESSIVE, max_new_tokens=20, eos_token_ids=()).tokens
    process_id = engine.load_draft("small", str(tiny_folders.drafter)).process_id
    listener = after(1, lambda: stop(process_id))
    found = run(SCHEDULES[name], max_new_tokens=20, eos_token_ids=(), listener=listener)
    assert found.tokens == expected
    (event,) = found.trace.events
    assert "has not answered for" in event.text
    assert_ended(process_id)


@pytest.mark.parametrize(("prompt", "prefill_s"), [(PROMPT, [0.2]), (PROMPT[:1], [])])
def test_a_draft_whose_prompt_took_long_or_had_no_row_may_take_long_to_draft(
    tiny_folders, monkeypatch, prompt, prefill_s
):
    """As a large draft model does on a machine under load, or whose weights are still on the disk."""

    def slowed(method, seconds):
        @wraps(method)
        def slow(*args, **options):
            time.sleep(seconds.pop(0) if seconds else 0)
            return method(*args, **options)

        return slow

    for name, seconds in (("prefill", prefill_s), ("rollout", [1.5])):
        monkeypatch.setattr(DraftRole, name, slowed(getattr(DraftRole, name), seconds))
    with thread_engine(tiny_folders.target, drafter_folder=tiny_folders.drafter) as engine:
        monkeypatch.setattr(engine, "_draft_deadline_s", 1.0)
        found = engine.generate(speculative(), prompt, max_new_tokens=8, eos_token_ids=())
    assert found.trace.events == []
    assert found.trace.rounds[0].num_drafted > 0


def test_a_draft_that_reads_nothing_is_given_the_time_of_its_deadline(run, engine, tiny_folders, monkeypatch):
    """As one in a long step, to which messages are sent that no socket's buffer holds."""
    monkeypatch.setattr(lane, "_LEAST_SEND_S", 0.05)
    process_id = engine.load_draft("small", str(tiny_folders.drafter)).process_id
    goes_on = Timer(0.5, os.kill, (process_id, signal.SIGCONT))

    def stop_and_send():
        stop(process_id)
        goes_on.start()
        engine.lane("small").post(LaneServer.ping, (Block("int32", (1 << 21,), bytes(1 << 23)),))

    found = run(SCHEDULES["hybrid mirror"], eos_token_ids=(), listener=after(1, stop_and_send))
    goes_on.join()
    assert found.trace.events == []
    assert found.trace.rounds[-1].num_drafted > 0


# While it loads


@contextmanager
def interrupted_loads(act):
    """Do something to the process of a lane once it is asked to load a draft; yields the ids of these processes."""
    request, process_ids = Lane.request, []

    def and_act(lane, method, *args, **options):
        reply = request(lane, method, *args, **options)
        if method is LaneServer.load_draft:
            process_ids.append(lane.process_id)
            act(lane.process_id)
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, "request", and_act)
        yield process_ids


def test_a_draft_that_dies_while_it_loads_leaves_a_text_in_bfloat16_as_it_was(coarse_engine, tiny_folders):
    expected = coarse_engine.generate(AUTOREGRESSIVE, PROMPT, max_new_tokens=24, eos_token_ids=()).tokens
    coarse_engine.lane("small").kill("it is to load again")
    for name in ("speculative", "speculative with features", "hybrid mirror", "mirror with features"):
        schedule = for_folders(SCHEDULES[name], tiny_folders)
        with interrupted_loads(kill):
            found = coarse_engine.generate(schedule, PROMPT, max_new_tokens=24, eos_token_ids=())
        assert found.tokens == expected
        (event,) = found.trace.events
        assert event.lane == "small"
        assert event.text == "lane 'small' is lost: its process ended (exit code -9); the target goes on alone"
    again = coarse_engine.generate(schedule, PROMPT, max_new_tokens=24, eos_token_ids=())
    assert again.tokens == expected
    assert again.trace.events == []  # the lane is there again


def test_a_draft_that_hangs_while_it_loads_is_ended_and_the_text_is_as_it_was(run, engine, monkeypatch):
    monkeypatch.setattr(lane_set, "DRAFT_LOAD_DEADLINE_S", 0.25)
    expected = run(AUTOREGRESSIVE, eos_token_ids=()).tokens
    engine.lane("small").kill("it is to load again")
    with interrupted_loads(stop) as process_ids:
        found = run(speculative(), eos_token_ids=())
    assert found.tokens == expected
    (event,) = found.trace.events
    assert event.text == "lane 'small' has not answered for 0.25 s; the target goes on alone"
    (process_id,) = process_ids
    assert_ended(process_id)


def test_a_draft_in_the_targets_lane_takes_the_target_with_it(run, engine):
    engine.lane("big").kill("it is to load again")
    with interrupted_loads(kill), pytest.raises(LaneDiedError, match="'big' is lost: its process ended"):
        run(POOLED, max_new_tokens=8)
    assert len(run(POOLED, max_new_tokens=8, eos_token_ids=()).tokens) == 8


def test_a_draft_that_is_not_to_be_had_is_still_an_error(engine, tmp_path):
    """Nobody waits for a model that was named wrongly to be there the next time."""
    with pytest.raises(ModelError, match="is not a shipped drafter .* and the folder has no config.json"):
        engine.generate(speculative(drafter=str(tmp_path)), PROMPT, max_new_tokens=8)


PLACEMENTS = {"plain": AUTOREGRESSIVE, "split": speculative(), "mirror": SCHEDULES["hybrid mirror"], "pooled": POOLED}


@pytest.mark.parametrize(
    ("name", "act", "error", "message"),
    [
        *((name, kill, LaneDiedError, "'big' is lost: its process ended") for name in PLACEMENTS),
        *((name, stop, LaneTimeoutError, r"lane 'big' has not answered for 0\.25 s") for name in ("mirror", "pooled")),
    ],
)
def test_a_lost_target_hands_over_what_was_committed_and_is_ended(run, engine, name, act, error, message):
    schedule, said = PLACEMENTS[name], []
    expected = run(schedule, eos_token_ids=()).tokens
    process_id = engine.lane("big").process_id
    with pytest.MonkeyPatch.context() as patch:

        def lose():
            act(process_id)
            if act is stop:
                patch.setattr(Deadline, "of", lambda *_: 0.25)

        with pytest.raises(error, match=message) as caught:
            run(schedule, eos_token_ids=(), listener=after_tokens(7, said, lose))
    assert len(said) > 6
    assert caught.value.tokens == tuple(said) == expected[: len(said)]
    assert_ended(process_id)
    assert run(schedule, eos_token_ids=()).tokens == expected


@pytest.mark.parametrize("lane", ["big", "small"])
def test_a_lane_that_dies_between_sequences_is_started_again_for_the_next(run, engine, lane):
    expected = run(speculative(), eos_token_ids=()).tokens
    kill(engine.lane(lane).process_id)
    engine.lane(lane)._process.wait(10)
    found = run(speculative(), eos_token_ids=())
    assert (found.tokens, found.trace.events) == (expected, [])


def test_an_operation_that_fails_in_the_targets_lane_hands_over_what_was_committed(run, engine):
    said = []
    listener = after_tokens(0, said, lambda: engine.lane("big").post(Unknown.dance))
    with pytest.raises(LaneError, match="no operation 'Unknown.dance'") as caught:
        run(POOLED, listener=listener)
    assert caught.value.tokens == tuple(said)


@pytest.mark.parametrize("schedule", [POOLED, speculative()])
def test_a_drafts_lane_that_dies_after_the_last_token_takes_no_text_with_it(run, engine, schedule):
    expected = run(schedule, eos_token_ids=()).tokens
    listener = after_tokens(24, [], lambda: kill(engine.lane(schedule.draft_lane).process_id))
    found = run(schedule, eos_token_ids=(), listener=listener)
    assert found.tokens == expected
    (event,) = found.trace.events
    lost = f"lane '{schedule.draft_lane}' is lost: its process ended (exit code -9), after the sequence had ended"
    assert event.text == lost
    assert run(schedule, eos_token_ids=()).trace.events == []


@pytest.mark.parametrize("until_s", [1.0, 8.0])
def test_a_lane_is_given_time_by_what_it_is_asked_and_by_what_it_took(monkeypatch, until_s):
    """But not by an operation in which this process was stopped."""
    monkeypatch.setattr(STOPS, "until_s", until_s)
    deadline = Deadline(60.0)
    assert deadline.of(0) == 60.0
    assert deadline.of(640) == 660.0

    class Reply:
        def result(self, _):
            return TimedReply(value=None, start_s=2.0, end_s=9.0)

    deadline.wait(None, Reply(), 1)
    assert deadline.of(0) == (140.0 if until_s < 2.0 else 60.0)
    assert deadline.of(640) == 660.0


def test_a_deadline_that_cannot_be_kept_is_refused(tiny_folders):
    for seconds in (0.0, -1.0, float("nan")):
        for name in ("target_deadline_s", "draft_deadline_s"):
            with pytest.raises(ConfigError, match=f"{name} is"):
                new_engine(tiny_folders, **{name: seconds})
