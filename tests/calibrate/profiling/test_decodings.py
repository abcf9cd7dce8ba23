"""Runs of a machine whose laws are known: tables that state the laws leave no error, others leave what they miss."""

from dataclasses import replace
from itertools import cycle, pairwise
from math import log
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.fitting.ratios import Ratio
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.decodings import alone_s, compare, decode, first_step, gaps_s, level, span_seconds, whole
from calibrate.profiling.run_anchors import RunAnchors
from calibrate.profiling.samples import Run
from decoding.errors import OutOfRangeError
from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from hwprofiles.profile import Anchor, Contention, Profile
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.laws import GAP_S, NUM_LAYERS, Laws
from tests.calibrate.profiling.fake_machine.weather import Weather

CONTEXTS = (20, 220)
PLAIN = Schedule(method="autoregressive", target_lane="cpu0")
DRAFTING = {"target_lane": "cpu0", "draft_lane": "cpu1", "num_speculative_tokens": 4}
SPECULATIVE = Schedule(method="speculative", **DRAFTING)
WITH_FEATURES = SPECULATIVE.model_copy(update={"exit_features": True})
MIRROR = Schedule(method="mirror", root_source="exit", exit_layer=6, exit_top_k=2, **DRAFTING)
SCHEDULES = [PLAIN, SPECULATIVE, WITH_FEATURES, MIRROR]
PAIR = ("cpu0", "cpu1")


def anchor_of(laws: Laws) -> Anchor:
    return Anchor(context=100, seconds=laws.target_s("verify", 1, 100, None), relative_error=0.0)


def anchors_of(engine: FakeEngine) -> Anchors:
    return Anchors({name: engine.load_target(name) for name in engine.laws}, context=100, clock=engine.clock)


def profile_of(laws: dict[str, Laws], *slowdown: float) -> Profile:
    """A profile of exactly the laws of lanes in a loop."""
    contention = [Contention(lanes=PAIR, slowdown=slowdown, source="laws")] if slowdown else []
    lanes = tuple(
        one.lane(name, range(1, 10), CONTEXTS).model_copy(update={"anchor": anchor_of(one)})
        for name, one in laws.items()
    )
    return Profile(
        host={}, target="t", drafter="d", dtype="float32", num_layers=NUM_LAYERS, lanes=lanes, contention=contention
    )


def run_of(schedule: Schedule, *slowdown: float, weather: Weather | None = None, **laws: float) -> tuple[Run, Profile]:
    """(a run, the profile of its lanes): both lanes obey the same laws, the second is slower."""
    engine = FakeEngine({"cpu0": Laws(**laws), "cpu1": Laws(speed=0.8, **laws)}, weather=weather or Weather())
    in_loop = {name: Laws(speed=one.speed) for name, one in engine.laws.items()}
    return decode(engine, anchors_of(engine), schedule, CONTEXTS, 16), profile_of(in_loop, *slowdown)


def value_of(found: Ratio | tuple[Ratio, dict[str, float]] | None) -> float | None:
    """Of what `level` or `whole` say."""
    if found is None:
        return None
    return found.value if isinstance(found, Ratio) else found[0].value


# Decoding


@given(
    contexts=st.tuples(st.integers(0, 60), st.integers(1, 60)).map(lambda pair: (pair[0], sum(pair))),
    num_tokens=st.integers(1, 64),
    vocab_size=st.integers(2, 60_000),
)
def test_arbitrary_text_stays_within_the_contexts_and_the_vocabulary(contexts, num_tokens, vocab_size) -> None:
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
def test_a_round_starts_with_all_that_was_committed_before_it(schedule: Schedule) -> None:
    run, _ = run_of(schedule)
    contexts = run.contexts()
    assert contexts[0] == run.prompt_length - 1
    assert [after - before for before, after in pairwise(contexts)] == [one.num_committed for one in run.trace.rounds]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_stands_between_anchors_of_all_its_lanes(schedule: Schedule) -> None:
    engine = FakeEngine({"cpu0": Laws(), "cpu1": Laws(speed=0.8)}, weather=Weather(slow=1.4, fast_s=0.1, slow_s=0.1))
    anchors = anchors_of(engine)
    run = decode(engine, anchors, schedule, CONTEXTS, 16, is_check=True)
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


# Spans by the profile


@pytest.mark.parametrize("rows", [1, 5])
def test_a_prefix_and_its_suffix_are_a_verification_and_an_exit(rows: int) -> None:
    profile = profile_of({"cpu0": Laws()})

    def seconds(work: Work) -> float:
        return span_seconds(MIRROR, Span("cpu0", work, 0, 1, 1, rows), 100, profile)

    exit_s = profile.lane("cpu0").exit[6].at(rows, 100)
    assert seconds(Work.PREFIX) + seconds(Work.SUFFIX) == pytest.approx(seconds(Work.VERIFY) + exit_s)
    assert seconds(Work.VERIFY) == pytest.approx(Laws().target_s("verify", rows, 100, None))


@pytest.mark.parametrize("work", [Work.ROLLOUT_STEP, Work.BRANCH_STEP, Work.FINISH_STEP])
def test_steps_of_a_schedule_with_features_have_a_table_of_their_own(work: Work) -> None:
    profile, span = profile_of({"cpu1": Laws()}), Span("cpu1", work, 0, 1, 1, 3)
    assert span_seconds(SPECULATIVE, span, 100, profile) == Laws().step_s(3, 100)
    with_features = Laws().start_s(3, 100) if work is Work.BRANCH_STEP else Laws().step_s(3, 100, with_features=True)
    assert span_seconds(WITH_FEATURES, span, 100, profile) == pytest.approx(with_features)


def test_branches_that_have_started_are_fed_without_features() -> None:
    profile = profile_of({"cpu1": Laws()})
    schedule = MIRROR.model_copy(update={"exit_features": True, "exit_top_k": 1})
    roots = sum(schedule.exit_roots_per_row)
    later, first = (Span("cpu1", Work.BRANCH_STEP, 0, 1, 1, rows) for rows in (roots, roots + 1))
    assert span_seconds(schedule, later, 100, profile) == pytest.approx(Laws().step_s(roots, 100))
    assert span_seconds(schedule, first, 100, profile) == pytest.approx(Laws().start_s(roots + 1, 100))


def test_a_target_that_has_waited_for_another_lane_takes_what_waking_up_takes_more() -> None:
    profile = profile_of({"cpu0": Laws()})
    lane = profile.lanes[0].model_copy(update={"wake_s": 7e-3})
    waking = profile.model_copy(update={"lanes": (lane, *profile.lanes[1:])})

    def more_s(schedule: Schedule, work: Work) -> float:
        span = Span("cpu0", work, 0, 1, 1, 2)
        return span_seconds(schedule, span, 100, waking) - span_seconds(schedule, span, 100, profile)

    assert more_s(SPECULATIVE, Work.VERIFY) == more_s(MIRROR, Work.PREFIX) == pytest.approx(7e-3)
    assert more_s(PLAIN, Work.VERIFY) == more_s(MIRROR, Work.SUFFIX) == 0


def test_only_the_first_step_of_a_rollout_takes_what_waking_up_takes_more() -> None:
    eagle = Schedule(**DRAFTING, method="eagle2", drafter="mine", tree_size=4, tree_top_k=4)
    profile = profile_of({"cpu0": Laws(), "cpu1": Laws()})
    heads = {"mine": profile.lanes[1].draft_step, "other": profile.lanes[1].draft_step}
    waking = {"draft_wake_s": 2e-3, "head_wake_s": {"mine": 3e-3, "other": 9e-3}}
    lanes = [lane.model_copy(update={"heads": heads}) for lane in profile.lanes]
    before = profile.model_copy(update={"lanes": tuple(lanes)})
    after = before.model_copy(update={"lanes": (lanes[0], lanes[1].model_copy(update=waking))})

    def more_s(schedule: Schedule, *, starts: bool) -> float:
        span = Span("cpu1", Work.ROLLOUT_STEP, 0, 1, 1, 2)
        first, second = (span_seconds(schedule, span, 100, one, starts_rollout=starts) for one in (after, before))
        return first - second

    for schedule, wake_s in ((SPECULATIVE, 2e-3), (WITH_FEATURES, 2e-3), (eagle, 3e-3)):
        assert more_s(schedule, starts=True) == pytest.approx(wake_s)
        assert more_s(schedule, starts=False) == 0


@pytest.mark.parametrize("schedule", [MIRROR, MIRROR.model_copy(update={"exit_features": True})])
def test_steps_of_branches_take_what_they_take_more_whatever_their_rows_and_no_other_step_does(schedule) -> None:
    profile = profile_of({"cpu0": Laws(), "cpu1": Laws()})
    lanes = tuple(lane.model_copy(update={"branch_wake_s": 7e-3}) for lane in profile.lanes)

    def more_s(work: Work, rows: int, *, starts: bool = False) -> float:
        span = Span("cpu1", work, 0, 1, 1, rows)
        waking = profile.model_copy(update={"lanes": lanes})
        first, second = (span_seconds(schedule, span, 100, one, starts_rollout=starts) for one in (waking, profile))
        return first - second

    assert [more_s(Work.BRANCH_STEP, rows) for rows in (1, 2, 9)] == pytest.approx([7e-3] * 3)
    assert [more_s(work, 1) for work in (Work.ROLLOUT_STEP, Work.FINISH_STEP)] == [0, 0]
    assert more_s(Work.ROLLOUT_STEP, 1, starts=True) == 0


def test_passes_that_reply_states_take_what_it_takes_more_for_their_drafter_alone() -> None:
    profile = profile_of({"cpu0": Laws(), "cpu1": Laws()})
    lane = profile.lanes[0].model_copy(update={"features_s": {"d": 7e-3, "mine": 3e-3}})
    replying = profile.model_copy(update={"lanes": (lane, *profile.lanes[1:])})
    eagle = Schedule(**DRAFTING, method="eagle2", drafter="mine", tree_size=4, tree_top_k=4)

    def more_s(schedule: Schedule, work: Work) -> float:
        span = Span("cpu0", work, 0, 1, 1, 2)
        return span_seconds(schedule, span, 100, replying) - span_seconds(schedule, span, 100, profile)

    with_features = MIRROR.model_copy(update={"exit_features": True})
    assert more_s(WITH_FEATURES, Work.VERIFY) == more_s(with_features, Work.PREFIX) == pytest.approx(7e-3)
    assert more_s(with_features, Work.SUFFIX) == 0
    assert more_s(eagle, Work.VERIFY) == pytest.approx(3e-3)
    assert more_s(eagle.model_copy(update={"drafter": "other"}), Work.VERIFY) == 0
    assert more_s(PLAIN, Work.VERIFY) == more_s(SPECULATIVE, Work.VERIFY) == more_s(MIRROR, Work.PREFIX) == 0


def test_what_is_expected_alone_is_that_of_every_span_but_those_of_the_first_round() -> None:
    run, profile = run_of(MIRROR, 1.1, 1.3, target_contended=1.1, step_contended=1.3)
    spans = [span for span in run.trace.spans if span.work is Work.BRANCH_STEP and span.round > 0]
    contexts = run.contexts()
    expected_s = [Laws(speed=0.8).step_s(8, contexts[span.round]) for span in spans]
    assert alone_s(run, "cpu1", (Work.BRANCH_STEP,), profile) == pytest.approx(expected_s)
    assert alone_s(run, "cpu0", (Work.BRANCH_STEP,), profile) == []


@pytest.mark.parametrize(("rows", "context"), [(10, 100), (1, 221)])
def test_sizes_that_were_not_measured_are_not_guessed(rows: int, context: int) -> None:
    with pytest.raises(OutOfRangeError):
        span_seconds(PLAIN, Span("cpu0", Work.VERIFY, 0, 1, 1, rows), context, profile_of({"cpu0": Laws()}))


# First steps


@pytest.mark.parametrize("schedule", [SPECULATIVE, WITH_FEATURES])
@given(level_in_run=st.floats(0.7, 1.4), wake_s=st.floats(-1e-3, 4e-3), slower=st.floats(1, 2))
@settings(deadline=None, max_examples=20)
def test_what_first_steps_take_more_is_told_from_the_level_of_all_steps(schedule, level_in_run, wake_s, slower) -> None:
    """Their rows differ from those of later steps, and so does the speed of the machine from that of the profile."""
    weather = Weather(slow=slower, fast_s=1e-9, slow_s=1e9)
    run, profile = run_of(schedule, weather=weather, step_in_run=level_in_run, draft_wake_s=level_in_run * wake_s)
    found = first_step(run, "cpu1", profile, 5e-3)
    assert found is not None
    assert found.value == pytest.approx(1 + wake_s / 5e-3)


def test_first_steps_that_seem_to_take_less_than_nothing_are_next_to_nothing() -> None:
    """Of tiny models next to other work: a level is a ratio, whose logarithm is taken."""
    run, profile = run_of(SPECULATIVE, draft_wake_s=-20e-3)
    found = first_step(run, "cpu1", profile, 5e-3)
    assert found is not None
    assert found.value == 0.1


@pytest.mark.parametrize(
    "schedule", [PLAIN, MIRROR, SPECULATIVE.model_copy(update={"num_speculative_tokens": 1})], ids=str
)
def test_rollouts_of_one_step_say_nothing_of_first_ones(schedule: Schedule) -> None:
    run, profile = run_of(schedule, draft_wake_s=2e-3)
    assert first_step(run, "cpu1", profile, 5e-3) is None


def test_a_level_is_what_steps_take_beyond_waking_up() -> None:
    run, profile = run_of(SPECULATIVE, step_in_run=1.2, draft_wake_s=1.2 * 2e-3)
    lanes = tuple(lane.model_copy(update={"draft_wake_s": 2e-3}) for lane in profile.lanes)
    known = profile.model_copy(update={"lanes": lanes})
    assert value_of(level(run, "cpu1", (Work.ROLLOUT_STEP,), known)) == pytest.approx(1.2)
    assert value_of(level(run, "cpu1", (Work.ROLLOUT_STEP,), profile)) > 1.21


# Levels


@pytest.mark.parametrize("schedule", [PLAIN, SPECULATIVE, WITH_FEATURES])
def test_the_level_is_what_work_takes_in_a_run_over_what_it_takes_in_a_loop(schedule: Schedule) -> None:
    run, profile = run_of(schedule, target_in_run=1.04, step_in_run=1.2)
    assert value_of(level(run, "cpu0", (Work.VERIFY,), profile)) == pytest.approx(1.04)
    step = value_of(level(run, "cpu1", (Work.ROLLOUT_STEP,), profile))
    assert step == (None if schedule is PLAIN else pytest.approx(1.2))


@pytest.mark.parametrize("schedule", [PLAIN, SPECULATIVE])
def test_a_machine_that_was_slower_all_the_time_changes_no_level(schedule: Schedule) -> None:
    """The profile knows the machine at another speed: both sides are taken relative to their anchors."""
    weather = Weather(slow=1.4, fast_s=1e-9, slow_s=1e9)
    run, profile = run_of(schedule, weather=weather, target_in_run=1.04)
    found = level(run, "cpu0", (Work.VERIFY,), profile)
    assert found == (pytest.approx(1.04), 0.03)


def test_steps_of_a_draft_model_are_compared_with_its_own_anchors_where_calibration_had_some() -> None:
    """Its anchors took 1.5 times as long around this run as in calibration, and those of the target no longer."""
    run, profile = run_of(SPECULATIVE, step_in_run=1.2)
    known = with_step_anchor(profile, 2e-3)
    slower = replace(run, anchors=replace(run.anchors, steps=(3e-3, 3e-3)))
    step = (Work.ROLLOUT_STEP,)
    assert value_of(level(slower, "cpu1", step, known)) == pytest.approx(1.2 / 1.5)
    assert value_of(level(slower, "cpu1", step, profile)) == pytest.approx(1.2)
    without = replace(run, anchors=replace(run.anchors, steps=()))
    assert value_of(level(without, "cpu1", step, known)) == pytest.approx(1.2)
    assert level(slower, "cpu0", (Work.VERIFY,), known) == level(run, "cpu0", (Work.VERIFY,), profile)


def with_step_anchor(profile: Profile, seconds: float) -> Profile:
    own = {"step_anchor": Anchor(context=50, seconds=seconds)}
    return profile.model_copy(update={"lanes": tuple(lane.model_copy(update=own) for lane in profile.lanes)})


def test_a_machine_that_changed_meanwhile_leaves_a_doubt() -> None:
    run, profile = run_of(PLAIN)
    before_s = run.anchors.alone["cpu0"][0]
    changed = replace(run, anchors=RunAnchors({"cpu0": (before_s, 1.4 * before_s)}))
    ratio = level(changed, "cpu0", (Work.VERIFY,), profile)
    assert ratio == (pytest.approx(1 / 1.2), pytest.approx(log(1.4) / 2, rel=0.05))


def test_the_level_is_one_of_means_a_slow_round_counts_by_its_time() -> None:
    run, profile = run_of(PLAIN)
    spans = run.trace.spans
    longer_s = sum(span.end_s - span.start_s for span in spans if span.round > 0)
    spans[5] = spans[5]._replace(end_s=spans[5].end_s + 0.1 * longer_s)
    assert value_of(level(run, "cpu0", (Work.VERIFY,), profile)) == pytest.approx(1.1)


def test_the_first_round_does_not_count() -> None:
    run, profile = run_of(PLAIN)
    spans = run.trace.spans
    spans[:] = [span._replace(end_s=span.end_s + 9.0) if span.round == 0 else span for span in spans]
    assert value_of(level(run, "cpu0", (Work.VERIFY,), profile)) == pytest.approx(1.0)
    assert value_of(whole(run, profile)) == pytest.approx(1.0)


def test_work_while_another_lane_works_is_levelled_by_what_the_lanes_cost_each_other() -> None:
    run, profile = run_of(MIRROR, 1.1, 1.3, target_contended=1.1, step_contended=1.3)
    free = profile.model_copy(update={"contention": ()})
    for lane, work in (("cpu0", Work.SUFFIX), ("cpu1", Work.BRANCH_STEP)):
        assert value_of(level(run, lane, (work,), profile)) == pytest.approx(1.0)
        assert value_of(level(run, lane, (work,), free)) > 1.01


# What is left


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tables_that_state_the_laws_leave_no_error(schedule: Schedule) -> None:
    run, profile = run_of(schedule, 1.1, 1.3, target_contended=1.1, step_contended=1.3)
    assert value_of(whole(run, profile)) == pytest.approx(1.0)


@given(target=st.floats(0.8, 1.25), step=st.floats(0.8, 1.25))
def test_all_work_together_is_off_by_its_parts_as_far_as_they_share_in_it(target: float, step: float) -> None:
    run, profile = run_of(SPECULATIVE, target_in_run=target, step_in_run=step)
    found, shares = whole(run, profile)
    assert shares.keys() == {"target cpu0", "draft cpu1"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert 0.3 < shares["target cpu0"] < 0.8
    assert found.value == pytest.approx(shares["target cpu0"] * target + shares["draft cpu1"] * step)


def test_plain_decoding_is_all_the_targets() -> None:
    run, profile = run_of(PLAIN)
    assert whole(run, profile)[1] == {"target cpu0": 1.0}


def test_a_run_of_a_single_round_says_nothing() -> None:
    engine = FakeEngine({"cpu0": Laws()})
    run = decode(engine, anchors_of(engine), PLAIN, CONTEXTS, 1)
    profile = profile_of(engine.laws)
    assert whole(run, profile) is None
    assert level(run, "cpu0", (Work.VERIFY,), profile) is None
    assert gaps_s(run) == []
    assert compare([run], profile) == {}


def test_runs_are_compared_by_their_schedules() -> None:
    (plain, profile), (other, _) = run_of(PLAIN), run_of(SPECULATIVE)
    found = compare([plain, other, plain], profile)
    assert {schedule: len(runs) for schedule, runs in found.items()} == {PLAIN: 2, SPECULATIVE: 1}
    assert found[SPECULATIVE] == [whole(other, profile)]


def test_gaps_lie_between_one_verification_and_the_next() -> None:
    run, _ = run_of(PLAIN)
    gaps = gaps_s(run)
    assert gaps == pytest.approx([GAP_S] * len(gaps))
    assert len(gaps) == len(run.trace.rounds) - 2  # the first round does not count


def test_a_run_without_rounds_has_the_context_of_its_prompt() -> None:
    run = Run(PLAIN, prompt_length=5, trace=Trace(world="measured"), anchors={}, is_check=False, at_s=0.0)
    assert run.contexts() == [4]
