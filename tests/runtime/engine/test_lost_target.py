"""A target that is lost: what was committed is handed over."""

import os
import signal

import pytest

from decoding.errors import ConfigError, LaneDiedError, LaneError, LaneTimeoutError
from runtime.lanes.sequence_lanes import Listener
from runtime.lanes.target_lane import Deadline
from runtime.wire.operations import Answer
from tests.runtime.engine.schedules import AUTOREGRESSIVE, POOLED, SCHEDULES, new_engine, speculative
from tests.runtime.unknown_operation import Dance

PLACEMENTS = {"plain": AUTOREGRESSIVE, "split": speculative(), "mirror": SCHEDULES["hybrid mirror"], "pooled": POOLED}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_lost_target_hands_over_what_was_committed(run, engine, name):
    schedule, said = PLACEMENTS[name], []
    expected = run(schedule, max_new_tokens=24, eos_token_ids=()).tokens

    def kill(tokens):
        said.extend(tokens)
        if len(said) > 6:
            os.kill(engine.lane("big").process_id, signal.SIGKILL)

    with pytest.raises(LaneDiedError, match="'big' is lost: its process ended") as caught:
        run(schedule, max_new_tokens=24, eos_token_ids=(), listener=Listener(on_tokens=kill))
    assert len(said) > 6
    assert caught.value.tokens == tuple(said) == expected[: len(said)]
    assert run(schedule, max_new_tokens=24, eos_token_ids=()).tokens == expected


@pytest.mark.parametrize("name", ["mirror", "pooled"])
def test_a_target_that_hangs_hands_over_what_was_committed_and_is_ended(run, engine, name):
    schedule, said = PLACEMENTS[name], []
    expected = run(schedule, max_new_tokens=24, eos_token_ids=()).tokens
    process_id = engine.lane("big").process_id
    with pytest.MonkeyPatch.context() as patch:

        def stop(tokens):
            said.extend(tokens)
            if len(said) > 6:
                os.kill(process_id, signal.SIGSTOP)
                patch.setattr(Deadline, "of", lambda *_: 0.25)

        with pytest.raises(LaneTimeoutError, match=r"lane 'big' has not answered for 0\.25 s") as caught:
            run(schedule, max_new_tokens=24, eos_token_ids=(), listener=Listener(on_tokens=stop))
    assert len(said) > 6
    assert caught.value.tokens == tuple(said) == expected[: len(said)]
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
    assert run(schedule, max_new_tokens=24, eos_token_ids=()).tokens == expected


def test_an_operation_that_fails_in_the_targets_lane_hands_over_what_was_committed(run, engine):
    said = []

    def fail(tokens):
        said.extend(tokens)
        engine.lane("big").post(Dance())

    with pytest.raises(LaneError, match="no operation 'Dance'") as caught:
        run(POOLED, listener=Listener(on_tokens=fail))
    assert caught.value.tokens == tuple(said)


def test_a_pooled_lane_that_dies_after_the_last_token_takes_no_text_with_it(run, engine):
    expected = run(POOLED, max_new_tokens=24, eos_token_ids=()).tokens
    said = []

    def kill(tokens):
        said.extend(tokens)
        if len(said) == 24:
            os.kill(engine.lane("big").process_id, signal.SIGKILL)

    found = run(POOLED, max_new_tokens=24, eos_token_ids=(), listener=Listener(on_tokens=kill))
    assert found.tokens == expected
    (event,) = found.trace.events
    assert event.text.startswith("lane 'big' is lost: its process ended")


def test_the_target_is_given_time_by_what_it_is_asked_and_by_what_it_took():
    deadline = Deadline(60.0)
    assert deadline.of(0) == 60.0
    assert deadline.of(640) == 660.0

    class Reply:
        def result(self, _):
            return Answer(value=None, start_s=2.0, end_s=9.0)

    deadline.wait(None, Reply(), 1)
    assert deadline.of(0) == 140.0
    assert deadline.of(640) == 660.0


def test_a_deadline_that_cannot_be_kept_is_refused(tiny_folders):
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="target_deadline_s is"):
            new_engine(tiny_folders, target_deadline_s=seconds)
