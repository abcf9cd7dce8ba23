"""Runs of a machine whose laws are known: tables that state the laws leave no error, others leave what they miss."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.decodings import Run, decode, gaps_s, level_factor, residual, span_seconds
from decoding.errors import OutOfRangeError
from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from hwprofiles.profile import Contention, Profile
from tests.calibrate.profiling.fake_machine import GAP_S, NUM_LAYERS, FakeEngine, Laws

CONTEXTS = (20, 220)
PLAIN = Schedule(method="autoregressive", target_lane="a")
DRAFTING = {"target_lane": "a", "draft_lane": "b", "num_speculative_tokens": 4}
SPECULATIVE = Schedule(method="speculative", **DRAFTING)
WITH_FEATURES = SPECULATIVE.model_copy(update={"exit_features": True})
MIRROR = Schedule(method="mirror", root_source="exit", exit_layer=6, exit_top_k=2, **DRAFTING)
SCHEDULES = [PLAIN, SPECULATIVE, WITH_FEATURES, MIRROR]
PAIR = ("a", "b")


def profile_of(laws: dict[str, Laws], *slowdown: float) -> Profile:
    """A profile of exactly the laws of lanes in a loop."""
    contention = [Contention(lanes=PAIR, slowdown=slowdown, source="laws")] if slowdown else []
    lanes = tuple(one.lane(name, range(1, 10), CONTEXTS) for name, one in laws.items())
    return Profile(
        host={}, target="t", drafter="d", dtype="float32", num_layers=NUM_LAYERS, lanes=lanes, contention=contention
    )


def run_of(schedule: Schedule, *slowdown: float, surprise_tables: float = 1.0, **laws: float):
    """(a run, the profile of its lanes): both lanes obey the same laws, the second is slower."""
    engine = FakeEngine({"a": Laws(**laws), "b": Laws(speed=0.8, **laws)})
    in_loop = {name: Laws(speed=one.speed * surprise_tables) for name, one in engine.laws.items()}
    return decode(engine, schedule, CONTEXTS, 16), profile_of(in_loop, *slowdown)


# Decoding


@given(
    contexts=st.tuples(st.integers(0, 60), st.integers(1, 60)).map(lambda pair: (pair[0], sum(pair))),
    num_tokens=st.integers(1, 64),
    vocab_size=st.integers(2, 60_000),
)
def test_arbitrary_text_stays_within_the_contexts_and_the_vocabulary(contexts, num_tokens, vocab_size) -> None:
    asked = []

    class Engine:
        config = type("Config", (), {"vocab_size": vocab_size})

        def generate(self, schedule, prompt, *, max_new_tokens, eos_token_ids):
            assert eos_token_ids == ()
            asked.append((prompt, max_new_tokens))
            return type("Decoded", (), {"trace": Trace(world="measured")})

    run = decode(Engine(), PLAIN, contexts, num_tokens)
    ((prompt, max_new_tokens),) = asked
    assert contexts[0] <= len(prompt) - 1
    assert len(prompt) - 1 + max_new_tokens - 1 <= contexts[1]
    assert 1 <= max_new_tokens <= num_tokens
    assert all(0 <= token < vocab_size for token in prompt)
    assert run.prompt_length == len(prompt)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_round_starts_with_all_that_was_committed_before_it(schedule: Schedule) -> None:
    run, _ = run_of(schedule)
    contexts = run.contexts()
    assert contexts[0] == run.prompt_length - 1
    assert [after - before for before, after in pairwise(contexts)] == [one.num_committed for one in run.trace.rounds]


# Spans by the profile


@pytest.mark.parametrize("rows", [1, 5])
def test_a_prefix_and_its_suffix_are_a_verification_and_an_exit(rows: int) -> None:
    profile = profile_of({"a": Laws()})

    def seconds(work: Work) -> float:
        return span_seconds(MIRROR, Span("a", work, 0, 1, 1, rows), 100, profile)

    exit_s = profile.lane("a").exit[6].at(rows, 100)
    assert seconds(Work.PREFIX) + seconds(Work.SUFFIX) == pytest.approx(seconds(Work.VERIFY) + exit_s)
    assert seconds(Work.VERIFY) == pytest.approx(Laws().target_s("verify", rows, 100, None))


@pytest.mark.parametrize("work", [Work.ROLLOUT_STEP, Work.BRANCH_STEP, Work.FINISH_STEP])
def test_steps_of_a_schedule_with_features_have_a_table_of_their_own(work: Work) -> None:
    profile, span = profile_of({"b": Laws()}), Span("b", work, 0, 1, 1, 3)
    assert span_seconds(SPECULATIVE, span, 100, profile) == Laws().step_s(3, 100)
    with_features = Laws().step_s(3, 100, with_features=True)
    assert span_seconds(WITH_FEATURES, span, 100, profile) == pytest.approx(with_features)


@pytest.mark.parametrize(("rows", "context"), [(10, 100), (1, 221)])
def test_sizes_that_were_not_measured_are_not_guessed(rows: int, context: int) -> None:
    with pytest.raises(OutOfRangeError):
        span_seconds(PLAIN, Span("a", Work.VERIFY, 0, 1, 1, rows), context, profile_of({"a": Laws()}))


# Levels


@pytest.mark.parametrize("schedule", [PLAIN, SPECULATIVE, WITH_FEATURES])
def test_the_level_is_what_work_takes_in_a_run_over_what_it_takes_in_a_loop(schedule: Schedule) -> None:
    run, profile = run_of(schedule, target_in_run=1.04, step_in_run=1.2)
    assert level_factor([run], "a", Work.VERIFY, profile) == pytest.approx(1.04)
    step = level_factor([run], "b", Work.ROLLOUT_STEP, profile)
    assert step == (None if schedule is PLAIN else pytest.approx(1.2))


def test_the_level_of_several_runs_is_their_mean() -> None:
    (slow, profile), (fast, _) = run_of(PLAIN, target_in_run=1.2), run_of(PLAIN, target_in_run=1.0)
    assert level_factor([slow, fast], "a", Work.VERIFY, profile) == pytest.approx(1.1)


def test_one_disturbed_round_does_not_lift_the_level() -> None:
    run, profile = run_of(PLAIN, target_in_run=1.04)
    spans = run.trace.spans
    spans[5] = spans[5]._replace(end_s=spans[5].end_s + 9.0)
    assert level_factor([run], "a", Work.VERIFY, profile) == pytest.approx(1.04)


def test_the_first_round_does_not_count() -> None:
    run, profile = run_of(PLAIN)
    spans = run.trace.spans
    spans[:] = [span._replace(end_s=span.end_s + 9.0) if span.round == 0 else span for span in spans]
    assert level_factor([run], "a", Work.VERIFY, profile) == pytest.approx(1.0)
    assert residual(run, profile) == pytest.approx(0.0)


def test_work_while_another_lane_works_is_levelled_by_what_the_lanes_cost_each_other() -> None:
    run, profile = run_of(MIRROR, 1.1, 1.3, target_contended=1.1, step_contended=1.3)
    free = profile.model_copy(update={"contention": ()})
    for lane, work in (("a", Work.SUFFIX), ("b", Work.BRANCH_STEP)):
        assert level_factor([run], lane, work, profile) == pytest.approx(1.0)
        assert level_factor([run], lane, work, free) > 1.01


def test_a_branch_alone_is_no_step_of_branches() -> None:
    run, profile = run_of(MIRROR)
    run.trace.spans[:] = [span._replace(rows=1) if span.work is Work.BRANCH_STEP else span for span in run.trace.spans]
    assert level_factor([run], "b", Work.BRANCH_STEP, profile) is None


# What is left


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tables_that_state_the_laws_leave_no_error(schedule: Schedule) -> None:
    run, profile = run_of(schedule, 1.1, 1.3, target_contended=1.1, step_contended=1.3)
    assert residual(run, profile) == pytest.approx(0.0)


@given(factor=st.floats(0.5, 2.0))
def test_tables_of_a_machine_that_much_faster_are_that_much_too_small(factor: float) -> None:
    run, profile = run_of(SPECULATIVE, surprise_tables=factor)
    assert residual(run, profile) == pytest.approx(1 / factor - 1)


def test_a_run_of_a_single_round_says_nothing() -> None:
    engine = FakeEngine({"a": Laws()})
    run = decode(engine, PLAIN, CONTEXTS, 1)
    profile = profile_of(engine.laws)
    assert residual(run, profile) is None
    assert level_factor([run], "a", Work.VERIFY, profile) is None
    assert gaps_s(run) == []


def test_gaps_lie_between_one_verification_and_the_next() -> None:
    run, _ = run_of(PLAIN)
    gaps = gaps_s(run)
    assert gaps == pytest.approx([GAP_S] * len(gaps))
    assert len(gaps) == len(run.trace.rounds) - 2  # the first round does not count


def test_a_run_without_rounds_has_the_context_of_its_prompt() -> None:
    assert Run(schedule=PLAIN, prompt_length=5, trace=Trace(world="measured")).contexts() == [4]
