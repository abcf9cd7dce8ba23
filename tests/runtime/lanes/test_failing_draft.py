"""An operation that fails in a draft's lane costs time and nothing else."""

import pytest

from decoding.schedule import Schedule
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.lanes.sequence_lanes import Listener
from tests.runtime import plain
from tests.runtime.unknown_operation import Dance

PROMPT = [5, 17, 3, 44, 8]
NUM_TOKENS = 20
EXIT = {"root_source": "exit", "exit_layer": 2, "exit_top_k": 4}
SPLIT = {
    "speculative": Schedule(method="speculative", target_lane="big", draft_lane="small", num_speculative_tokens=3),
    "mirror": Schedule(method="mirror", target_lane="big", draft_lane="small", num_speculative_tokens=3, **EXIT),
}


@pytest.fixture(scope="module")
def engine(tiny_folders):
    lanes = [LaneSpec(name="big"), LaneSpec(name="small")]
    with Engine(
        tiny_folders.target,
        lanes=lanes,
        drafter_folder=tiny_folders.drafter,
        exits_folder=tiny_folders.exits,
        dtype="float32",
        draft_deadline_s=60.0,
    ) as engine:
        yield engine


@pytest.fixture
def run(engine):
    """Decodes, and has an operation fail in one lane after a round."""

    def run(schedule, lane=None, rounds_before=0):
        left = [rounds_before]

        def fail(_):
            if left[0] == 0 and lane is not None:
                engine.lane(lane).post(Dance())
            left[0] -= 1

        return engine.generate(
            schedule, PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=(), listener=Listener(on_tokens=fail)
        )

    return run


@pytest.mark.parametrize(("name", "rounds_before"), [("speculative", 0), ("mirror", 2)])
def test_a_failure_in_the_drafts_lane_leaves_the_text_as_it_was(run, tiny_folders, name, rounds_before):
    found = run(SPLIT[name], lane="small", rounds_before=rounds_before)
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, PROMPT, NUM_TOKENS)
    assert [entry.num_drafted for entry in found.trace.rounds[: rounds_before + 1]] == [3] * (rounds_before + 1)
    assert {entry.num_drafted for entry in found.trace.rounds[rounds_before + 1 :]} == {0}


def test_the_trace_names_the_error_once(run):
    (event,) = run(SPLIT["mirror"], lane="small").trace.events
    assert event.lane == "small"
    assert "this lane has no operation 'Dance'" in event.text
    assert event.text.endswith("; the target goes on alone")


def test_a_lane_that_failed_starts_afresh_with_the_next_request(run, engine):
    process_id = engine.load_draft("small").process_id
    run(SPLIT["speculative"], lane="small")
    assert not engine.lane("small").is_alive
    again = run(SPLIT["speculative"])
    assert again.trace.events == []
    assert {entry.num_drafted for entry in again.trace.rounds} == {3}
    assert engine.lane("small").process_id != process_id
