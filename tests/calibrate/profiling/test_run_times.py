"""Runs between anchors: a profile that states the laws of a machine leaves no error, others leave what they miss."""

from dataclasses import replace
from itertools import pairwise
from math import log
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.profiling.anchors import RunAnchors
from calibrate.profiling.passes import decode
from calibrate.profiling.run_levels import run_levels
from calibrate.profiling.run_times import compare_run, compare_runs, first_step, gaps_s, level
from decoding.trace import Trace, Work
from hwprofiles.lane_profile import Overhead
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.known_runs import (
    CONTEXTS,
    MIRROR,
    PLAIN,
    SCHEDULES,
    SPECULATIVE,
    WITH_FEATURES,
    anchors_of,
    profile_of,
    run_of,
    value_of,
)
from tests.calibrate.profiling.fake_machine.laws import GAP_S, Laws
from tests.calibrate.profiling.fake_machine.weather import Weather


@pytest.mark.parametrize("schedule", [SPECULATIVE, WITH_FEATURES])
@given(level_in_run=st.floats(0.7, 1.4), wake_s=st.floats(-1e-3, 4e-3), slower=st.floats(1, 2))
@settings(deadline=None, max_examples=20)
def test_what_first_steps_take_more_is_told_from_the_level_of_all_steps(schedule, level_in_run, wake_s, slower):
    """Their rows differ from those of later steps, and so does the speed of the machine from that of the profile."""
    weather = Weather(slow=slower, fast_s=1e-9, slow_s=1e9)
    run, profile = run_of(schedule, weather=weather, step_in_run=level_in_run, first_step_s=level_in_run * wake_s)
    found = first_step(run, "cpu1", profile, 5e-3)
    assert found is not None
    assert found.value == pytest.approx(1 + wake_s / 5e-3)


def test_first_steps_that_seem_to_take_less_than_nothing_are_next_to_nothing():
    """Of tiny models next to other work: a level is a ratio, whose logarithm is taken."""
    run, profile = run_of(SPECULATIVE, first_step_s=-20e-3)
    found = first_step(run, "cpu1", profile, 5e-3)
    assert found is not None
    assert found.value == 0.1


def test_a_level_is_what_steps_take_beyond_the_start_of_their_rollout():
    run, profile = run_of(SPECULATIVE, step_in_run=1.2, first_step_s=1.2 * 2e-3)
    lanes = tuple(lane.with_overhead("first_step", Overhead(seconds=2e-3)) for lane in profile.lanes)
    known = profile.model_copy(update={"lanes": lanes})
    assert value_of(level(run, "cpu1", (Work.ROLLOUT_STEP,), known)) == pytest.approx(1.2)
    assert value_of(level(run, "cpu1", (Work.ROLLOUT_STEP,), profile)) > 1.21


@pytest.mark.parametrize("schedule", [PLAIN, SPECULATIVE, WITH_FEATURES])
def test_the_level_is_what_work_takes_in_a_run_over_what_it_takes_in_a_loop(schedule):
    run, profile = run_of(schedule, target_in_run=1.04, step_in_run=1.2)
    assert value_of(level(run, "cpu0", (Work.VERIFY,), profile)) == pytest.approx(1.04)
    step = value_of(level(run, "cpu1", (Work.ROLLOUT_STEP,), profile))
    assert step == (None if schedule is PLAIN else pytest.approx(1.2))


@pytest.mark.parametrize("schedule", [PLAIN, SPECULATIVE])
def test_a_machine_that_was_slower_all_the_time_changes_no_level(schedule):
    """The profile knows the machine at another speed: both sides are taken relative to their anchors."""
    weather = Weather(slow=1.4, fast_s=1e-9, slow_s=1e9)
    run, profile = run_of(schedule, weather=weather, target_in_run=1.04)
    found = level(run, "cpu0", (Work.VERIFY,), profile)
    assert found == (pytest.approx(1.04), 0.03)


def test_a_machine_that_changed_meanwhile_leaves_a_doubt():
    run, profile = run_of(PLAIN)
    before_s = run.anchors.alone["cpu0"][0]
    changed = replace(run, anchors=RunAnchors({"cpu0": (before_s, 1.4 * before_s)}))
    ratio = level(changed, "cpu0", (Work.VERIFY,), profile)
    assert ratio == (pytest.approx(1 / 1.2), pytest.approx(log(1.4) / 2, rel=0.05))


def test_the_level_is_one_of_means_a_slow_round_counts_by_its_time():
    run, profile = run_of(PLAIN)
    spans = run.trace.spans
    longer_s = sum(span.end_s - span.start_s for span in spans if span.round > 0)
    spans[5] = spans[5]._replace(end_s=spans[5].end_s + 0.1 * longer_s)
    assert value_of(level(run, "cpu0", (Work.VERIFY,), profile)) == pytest.approx(1.1)


def test_the_first_round_does_not_count():
    run, profile = run_of(PLAIN)
    spans = run.trace.spans
    spans[:] = [span._replace(end_s=span.end_s + 9.0) if span.round == 0 else span for span in spans]
    assert value_of(level(run, "cpu0", (Work.VERIFY,), profile)) == pytest.approx(1.0)
    assert value_of(compare_run(run, profile)) == pytest.approx(1.0)


def test_work_while_another_lane_works_is_levelled_by_what_the_lanes_cost_each_other():
    run, profile = run_of(MIRROR, 1.1, 1.3, target_contended=1.1, step_contended=1.3)
    free = profile.model_copy(update={"contention": ()})
    for lane, work in (("cpu0", Work.SUFFIX), ("cpu1", Work.BRANCH_STEP)):
        assert value_of(level(run, lane, (work,), profile)) == pytest.approx(1.0)
        assert value_of(level(run, lane, (work,), free)) > 1.01


@given(target=st.floats(0.8, 1.25), step=st.floats(0.8, 1.25))
def test_all_work_together_is_off_by_its_parts_as_far_as_they_share_in_it(target, step):
    run, profile = run_of(SPECULATIVE, target_in_run=target, step_in_run=step)
    found, shares = compare_run(run, profile)
    assert shares.keys() == {"target cpu0", "draft cpu1"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert 0.3 < shares["target cpu0"] < 0.8
    assert found.value == pytest.approx(shares["target cpu0"] * target + shares["draft cpu1"] * step)


def test_passes_of_draft_heads_count_for_the_level_of_several_rows_and_for_no_other():
    run, profile = run_of(SPECULATIVE)
    slower, _ = run_of(SPECULATIVE, several_in_run=1.1, step_in_run=1.3)
    of_head = replace(slower, schedule=SPECULATIVE.model_copy(update={"drafter": "eagle"}))
    levels = run_levels([run_of(PLAIN)[0], *[run] * 4, *[of_head] * 4], profile, lambda _steps: ())
    assert 1.03 < levels.wide_passes["cpu0"].factor < 1.07
    assert levels.passes["cpu0"].factor == pytest.approx(1.0)
    assert levels.steps["cpu1"].factor == pytest.approx(1.0)


def test_steps_with_features_are_expected_at_the_level_of_all_lanes_and_not_at_the_first_lanes_own():
    engine = FakeEngine({"cpu0": Laws(step_in_run=1.3), "cpu1": Laws(step_in_run=1.0)})
    swapped = SPECULATIVE.model_copy(update={"target_lane": "cpu1", "draft_lane": "cpu0"})
    runs = [decode(engine, anchors_of(engine), one, CONTEXTS, 16) for one in (SPECULATIVE, swapped)]
    levels = run_levels(runs * 3, profile_of({name: Laws() for name in engine.laws}), lambda _steps: ())
    assert levels.steps["cpu0"].is_own
    assert levels.steps["cpu1"].is_own
    lower, upper = (levels.steps[name].factor for name in ("cpu1", "cpu0"))
    for found in levels.features_steps.values():
        assert lower + 0.05 < found.factor < upper - 0.05


def test_a_run_of_a_single_round_says_nothing():
    engine = FakeEngine({"cpu0": Laws()})
    run = decode(engine, anchors_of(engine), PLAIN, CONTEXTS, 1)
    profile = profile_of(engine.laws)
    assert compare_run(run, profile) is None
    assert level(run, "cpu0", (Work.VERIFY,), profile) is None
    assert gaps_s(run) == []
    assert compare_runs([run], profile) == {}


def test_gaps_lie_between_one_verification_and_the_next():
    run, _ = run_of(PLAIN)
    gaps = gaps_s(run)
    assert gaps == pytest.approx([GAP_S] * len(gaps))
    assert len(gaps) == len(run.trace.rounds) - 2  # the first round does not count


@given(
    contexts=st.tuples(st.integers(0, 60), st.integers(2, 60)).map(lambda pair: (pair[0], sum(pair))),
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
    assert len(prompt) + max_new_tokens <= contexts[1]
    assert 1 <= max_new_tokens <= num_tokens
    assert all(0 <= token < vocab_size for token in prompt)
    assert run.prompt_length == len(prompt)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_round_starts_with_all_that_was_committed_before_it(schedule):
    run, _ = run_of(schedule)
    contexts = run.contexts()
    assert contexts[0] == run.prompt_length - 1
    assert [after - before for before, after in pairwise(contexts)] == [one.num_committed for one in run.trace.rounds]
