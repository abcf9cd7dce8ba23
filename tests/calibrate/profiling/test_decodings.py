"""Short decodings of arbitrary tokens, between anchors of all lanes that they use."""

from itertools import cycle, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.anchors import RunAnchors
from calibrate.profiling.passes import decode
from calibrate.profiling.samples import Run
from decoding.trace import Trace
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.known_runs import CONTEXTS, MIRROR, PLAIN, SCHEDULES, anchors_of, run_of
from tests.calibrate.profiling.fake_machine.laws import Laws
from tests.calibrate.profiling.fake_machine.weather import Weather


@given(
    contexts=st.tuples(st.integers(0, 60), st.integers(1, 60)).map(lambda pair: (pair[0], sum(pair))),
    num_tokens=st.integers(1, 64),
    vocab_size=st.integers(2, 60_000),
)
def test_arbitrary_text_stays_within_the_contexts_and_the_vocabulary(contexts, num_tokens, vocab_size):
    asked = []

    class Engine(FakeEngine):
        def generate(self, schedule, prompt, *, max_new_tokens, eos_token_ids, listener):
            assert eos_token_ids == ()
            asked.append((prompt, max_new_tokens))
            return SimpleNamespace(trace=Trace(world="measured"))

    engine = Engine({"cpu0": Laws()}, config=SimpleNamespace(vocab_size=vocab_size))
    run = decode(engine, anchors_of(engine), PLAIN, contexts, num_tokens)
    ((prompt, max_new_tokens),) = asked
    assert contexts[0] <= len(prompt) - 1
    assert len(prompt) - 1 + max_new_tokens - 1 <= contexts[1]
    assert 1 <= max_new_tokens <= num_tokens
    assert all(0 <= token < vocab_size for token in prompt)
    assert run.prompt_length == len(prompt)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_round_starts_with_all_that_was_committed_before_it(schedule):
    run, _ = run_of(schedule)
    contexts = run.contexts()
    assert contexts[0] == run.prompt_length - 1
    assert [after - before for before, after in pairwise(contexts)] == [one.num_committed for one in run.trace.rounds]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_stands_between_anchors_of_all_its_lanes(schedule):
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws(speed=0.8)}, weather=Weather(slow=1.4, fast_s=0.1, slow_s=0.1))
    anchors = anchors_of(engine)
    run = decode(engine, anchors, schedule, CONTEXTS, 24, is_check=True)
    lanes = [lane for lane in (schedule.target_lane, schedule.draft_lane) if lane]
    samples, count = anchors.samples, len(lanes)
    before, during, after = samples[:count], samples[count:-count], samples[-count:]
    assert [one.lane for one in before] == [one.lane for one in after] == lanes
    assert [one.lane for one in during] == [lane for lane, _ in zip(cycle(lanes), during, strict=False)]
    assert len(during) >= 1
    alone = {lane: tuple(one.seconds for one in samples if one.lane == lane) for lane in lanes}
    steps = run.anchors.steps
    assert run.anchors == RunAnchors(alone, tuple(one.seconds for one in anchors.shared), steps)
    assert len(steps) == (len(during) + len(anchors.shared[1:-1]) + 1) * schedule.traits.has_draft_model
    assert {one.lanes for one in anchors.shared} == ({tuple(lanes)} if schedule is MIRROR else set())
    if schedule is MIRROR:
        assert len(anchors.shared) - 2 - len(during) in (0, 1), "before, after, and before every other in between"
    at_s = sorted(one.at_s for one in (*during, *anchors.shared[1:-1]))
    assert all(later - one > 0.12 for one, later in pairwise(at_s))
    decoded_s = sum(span.end_s - span.start_s for span in run.trace.spans if span.lane == "cpu0")
    assert after[0].at_s - before[-1].at_s > decoded_s + sum(one.seconds for one in during)
    assert (run.is_check, run.at_s) == (True, 0.0)


def test_a_run_without_rounds_has_the_context_of_its_prompt():
    run = Run(PLAIN, prompt_length=5, trace=Trace(world="measured"), anchors={}, is_check=False, at_s=0.0)
    assert run.contexts() == [4]
