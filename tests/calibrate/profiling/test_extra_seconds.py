"""What work takes beyond its tables is found on a machine of laws, by lane and drafter, and is priced once."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.profiling.decodings import draft_over_target, level, outside_s
from calibrate.profiling.extra_seconds import (
    with_branch_waking,
    with_draft_waking,
    with_features,
    with_pace_spread,
    with_resizing,
    with_start_waking,
    with_turns,
)
from calibrate.profiling.run_anchors import RunAnchors
from calibrate.profiling.samples import Run
from decoding.messages import Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from hwprofiles.profile import LatencyTable, Profile
from tests.calibrate.profiling.test_decodings import MIRROR, PLAIN, SPECULATIVE, WITH_FEATURES, run_of, value_of

WAKE_S = 2e-3
THREADS = {"cpu0": 1, "cpu1": 1}


MIRROR_WITH_FEATURES = MIRROR.model_copy(update={"exit_features": True})
BACK = {"target_lane": "cpu1", "draft_lane": "cpu0"}


def waking(*schedules, head=None, wake_s=WAKE_S, drop=(), **laws):
    """The profile of runs of some schedules, all between the same two lanes."""
    runs, profiles = zip(*(run_of(one, draft_wake_s=wake_s, **laws) for one in schedules), strict=True)
    profile = profiles[0]
    lanes = tuple(lane.model_copy(update=dict.fromkeys(drop)) for lane in profile.lanes)
    return with_draft_waking(profile.model_copy(update={"lanes": lanes}), runs, head, THREADS)


def test_it_is_found_from_windows_with_and_without_features() -> None:
    """The second lane has 0.8 of the speed of the first, and drafts here."""
    lane = waking(*[SPECULATIVE, WITH_FEATURES] * 6).lane("cpu1")
    assert lane.draft_wake_s == pytest.approx(WAKE_S, rel=0.02)
    assert lane.head_wake_s == {}


def test_lanes_of_as_many_threads_share_it_relative_to_their_steps() -> None:
    profile = waking(*[SPECULATIVE] * 6)
    shares = [lane.draft_wake_s / lane.draft_step.seconds[0][0] for lane in profile.lanes]
    assert shares[0] == pytest.approx(shares[1])
    other = with_draft_waking(profile, [], None, {"cpu0": 1, "cpu1": 2})
    assert [lane.draft_wake_s for lane in other.lanes] == [0, 0]


@pytest.mark.parametrize("schedule", [PLAIN, MIRROR])
def test_without_rollouts_of_several_steps_nothing_is_said(schedule) -> None:
    profile = waking(schedule)
    assert [lane.draft_wake_s for lane in profile.lanes] == [0, 0]
    assert [lane.draft_step.relative_error for lane in profile.lanes] == [0, 0]


def test_first_steps_that_take_less_are_noise() -> None:
    profile = waking(*[SPECULATIVE] * 6, wake_s=-5e-4)
    assert [lane.draft_wake_s for lane in profile.lanes] == [0, 0]


def test_what_is_not_known_of_it_makes_steps_less_certain() -> None:
    once, often = (waking(*[SPECULATIVE] * count).lane("cpu1") for count in (1, 20))
    assert once.draft_step.relative_error > often.draft_step.relative_error == 0, "runs of laws do not scatter"
    assert once.draft_step_features.relative_error == once.draft_step.relative_error
    assert once.layer.relative_error == 0


def test_a_head_has_its_own() -> None:
    runs, profiles = zip(*(run_of(SPECULATIVE, draft_wake_s=WAKE_S) for _ in range(6)), strict=True)
    of_head = {"method": "eagle2", "drafter": "mine", "tree_size": 4, "tree_top_k": 4}
    runs = [replace(run, schedule=run.schedule.model_copy(update=of_head)) for run in runs]
    lanes = tuple(
        lane.model_copy(update={"heads": dict.fromkeys(("mine", "other"), lane.draft_step), "head_wake_s": {"x": 1}})
        for lane in profiles[0].lanes
    )
    profile = with_draft_waking(profiles[0].model_copy(update={"lanes": lanes}), runs, "mine", THREADS)
    lane = profile.lane("cpu1")
    assert lane.head_wake_s == {"x": 1, "mine": pytest.approx(WAKE_S, rel=0.02)}
    assert lane.draft_wake_s == 0
    once = with_draft_waking(profile, runs[:1], "mine", THREADS).lane("cpu1")
    assert once.heads["mine"].relative_error > once.heads["other"].relative_error == 0
    assert once.draft_step.relative_error == 0


def test_a_lane_without_the_drafter_has_none() -> None:
    profile = waking(*[SPECULATIVE] * 6, drop=("draft_step", "draft_step_features", "draft_start"), head="nobody")
    assert [lane.head_wake_s for lane in profile.lanes] == [{}, {}]


# Steps of branches


def branching(*schedules, threads=THREADS, **laws) -> Profile:
    """The profile with what steps of branches take more in runs of some schedules."""
    runs, profiles = zip(*(run_of(one, **laws) for one in schedules), strict=True)
    return with_branch_waking(profiles[0], runs, threads)


def test_what_steps_of_branches_take_more_is_a_time_and_no_factor() -> None:
    """The second lane has 0.8 of the speed of the first; in its tables nothing changes."""
    profile = branching(*[MIRROR] * 6, branch_wake_s=WAKE_S)
    lane = profile.lane("cpu1")
    assert lane.branch_wake_s == pytest.approx(WAKE_S / 0.8, rel=0.02)
    _, before = run_of(MIRROR)
    assert lane.draft_step == before.lane("cpu1").draft_step
    assert lane.draft_wake_s == 0


def test_with_it_steps_of_branches_take_what_they_took() -> None:
    run, _ = run_of(MIRROR, branch_wake_s=WAKE_S)
    profile = branching(*[MIRROR] * 6, branch_wake_s=WAKE_S)
    assert value_of(level(run, "cpu1", (Work.BRANCH_STEP,), profile)) == pytest.approx(1)


def test_lanes_of_as_many_threads_share_it_relative_to_their_own_steps() -> None:
    schedules = [MIRROR, MIRROR.model_copy(update=BACK)]
    together = branching(*schedules * 6, branch_wake_s=WAKE_S)
    shares = [lane.branch_wake_s / lane.draft_step.at(8, 100) for lane in together.lanes]
    assert shares[0] == pytest.approx(shares[1], rel=0.01)
    apart = branching(*[MIRROR] * 6, *schedules[1:], branch_wake_s=WAKE_S, threads={"cpu0": 1, "cpu1": 2})
    errors = [lane.branch_error for lane in apart.lanes]
    assert errors[0] > errors[1], "a single run of its own says less than six"


@pytest.mark.parametrize("schedule", [PLAIN, SPECULATIVE])
def test_runs_without_branches_say_nothing_of_them(schedule) -> None:
    profile = branching(schedule, draft_wake_s=WAKE_S)
    assert [(lane.branch_wake_s, lane.branch_error) for lane in profile.lanes] == [(0, 0), (0, 0)]


def test_branches_that_take_less_than_their_tables_are_noise() -> None:
    lane = branching(*[MIRROR] * 6, branch_wake_s=-5e-4).lane("cpu1")
    assert lane.branch_wake_s == 0


def test_what_is_not_known_of_branches_is_an_error_of_their_own() -> None:
    once, often = (branching(*[MIRROR] * count, branch_wake_s=WAKE_S).lane("cpu1") for count in (1, 20))
    assert once.branch_wake_s == pytest.approx(often.branch_wake_s, rel=0.05)
    assert once.branch_error > often.branch_error == pytest.approx(0), "runs of laws do not scatter"
    assert once.draft_step.relative_error == 0


# Features


def replying(*schedules, drafter="d", **laws) -> Profile:
    """The profile with what passes take more whose states a drafter reads, in runs of some schedules."""
    runs, profiles = zip(*(run_of(one, **laws) for one in schedules), strict=True)
    return with_features(profiles[0], runs, drafter)


@pytest.mark.parametrize("schedule", [WITH_FEATURES, MIRROR_WITH_FEATURES])
def test_what_passes_take_more_that_reply_states_is_found_once_a_pass(schedule) -> None:
    lane = replying(*[schedule] * 6, features_s=WAKE_S).lane("cpu0")
    assert lane.features_s == {"d": pytest.approx(WAKE_S, rel=1e-3)}
    _, before = run_of(schedule)
    assert lane.layer == before.lane("cpu0").layer


def test_runs_that_reply_no_states_say_nothing_of_it() -> None:
    """A target that takes longer in all of its passes is a matter of levels."""
    profile = replying(PLAIN, SPECULATIVE, MIRROR, *[WITH_FEATURES] * 6, features_s=WAKE_S)
    assert profile.lane("cpu0").features_s == {"d": pytest.approx(WAKE_S, rel=1e-3)}
    none = replying(PLAIN, SPECULATIVE, MIRROR, target_in_run=1.2)
    assert [(lane.features_s, lane.features_error) for lane in none.lanes] == [({}, {})] * 2


def test_a_table_that_is_off_at_just_their_rows_does_not_hide_it() -> None:
    """Runs that differ in nothing else are off by as much."""
    runs, profiles = zip(*(run_of(one, features_s=WAKE_S) for one in [SPECULATIVE, WITH_FEATURES] * 6), strict=True)
    lanes = tuple(lane.scaled({"layer": 1.05, "lm_head": 1.05}) for lane in profiles[0].lanes)
    off = profiles[0].model_copy(update={"lanes": lanes})
    compared, alone = with_features(off, runs, "d"), with_features(off, runs[1::2], "d")
    assert compared.lane("cpu0").features_s == {"d": pytest.approx(1.05 * WAKE_S, rel=1e-2)}
    assert alone.lane("cpu0").features_s["d"] < 0.8 * WAKE_S


def test_lanes_share_it_relative_to_their_own_passes() -> None:
    """Three runs of one lane and one of the other: what the other has alone is not told apart."""
    back = WITH_FEATURES.model_copy(update=BACK)
    profile = replying(*[WITH_FEATURES] * 3, back, features_s=WAKE_S)
    first, second = (lane.features_s["d"] for lane in profile.lanes)
    assert first == pytest.approx(WAKE_S, rel=1e-3)
    assert second == pytest.approx(WAKE_S / 0.8, rel=1e-3)
    assert profile.lanes[0].features_error == profile.lanes[1].features_error


def test_a_lane_that_replied_to_nobody_has_no_price_for_it() -> None:
    profile = replying(*[WITH_FEATURES] * 6, features_s=WAKE_S)
    assert profile.lane("cpu1").features_s == {}


def test_every_drafter_has_its_own_and_leaves_the_others() -> None:
    runs, profiles = zip(*(run_of(WITH_FEATURES, features_s=WAKE_S) for _ in range(6)), strict=True)
    lanes = tuple(lane.model_copy(update={"features_s": {"mine": 1.0}}) for lane in profiles[0].lanes)
    profile = with_features(profiles[0].model_copy(update={"lanes": lanes}), runs, "d")
    assert profile.lane("cpu0").features_s == {"mine": 1.0, "d": pytest.approx(WAKE_S, rel=1e-3)}


def test_passes_that_reply_states_in_less_time_are_noise() -> None:
    lane = replying(*[WITH_FEATURES] * 6, features_s=-5e-4).lane("cpu0")
    assert lane.features_s == {"d": 0}


def test_what_is_not_known_of_replying_is_an_error_of_its_own() -> None:
    once, often = (replying(*[WITH_FEATURES] * count, features_s=WAKE_S).lane("cpu0") for count in (1, 20))
    assert once.features_error["d"] > often.features_error["d"] == pytest.approx(0), "runs of laws do not scatter"
    assert once.layer.relative_error == 0


# Steps after ones of other rows, starts of branches, and turns


def with_spans(schedule: Schedule, *spans: tuple[str, Work, float, float, int, int], ends=(1.0, 2.0, 3.0)) -> Run:
    """A run of some spans (lane, work, start, end, round, rows), whose anchors took what they did in calibration."""
    run, profile = run_of(schedule)
    trace = Trace(world="measured")
    trace.spans += [Span(*one) for one in spans]
    for end_s in ends:
        trace.begin_round(end_s - 1)
        trace.end_round(end_s, Window((1,)), Verdict(0, 1), 1)
    anchors = RunAnchors({lane.name: (lane.anchor.seconds,) * 2 for lane in profile.lanes})
    return replace(run, trace=trace, anchors=anchors)


def rollouts(first_rows: int, more_s: float) -> Run:
    """Two rollouts of three steps, of one millisecond each; `more_s` is what the second one takes more."""
    spans = []
    for number in (1, 2):
        start_s = float(number)
        for place in range(3):
            seconds = 1e-3 + (more_s if place == 1 else 0.0)
            rows = first_rows if place == 0 else 1
            spans.append(("cpu1", Work.ROLLOUT_STEP, start_s, start_s + seconds, number, rows))
            start_s += seconds
    return with_spans(SPECULATIVE, *spans)


def constant_steps(profile: Profile, seconds: float = 1e-3) -> Profile:
    """A profile whose draft takes as long whatever its rows."""
    table = LatencyTable(rows=(1, 99), contexts=(0, 300), seconds=((seconds,) * 2,) * 2, source="a test")
    lanes = (lane.model_copy(update={"draft_step": table, "step_anchor": None}) for lane in profile.lanes)
    return profile.model_copy(update={"lanes": tuple(lanes)})


@pytest.mark.parametrize(("first_rows", "found_s"), [(2, 5e-4), (1, 0.0)])
def test_a_step_takes_more_after_one_of_other_rows_and_after_one_of_as_many_nothing_is_said(
    first_rows, found_s
) -> None:
    profile = constant_steps(run_of(SPECULATIVE)[1])
    lane = with_resizing(profile, [rollouts(first_rows, 5e-4)] * 40, THREADS).lane("cpu1")
    assert lane.resize_s == pytest.approx(found_s, rel=0.05)


def test_steps_that_take_less_after_ones_of_other_rows_are_noise() -> None:
    profile = constant_steps(run_of(SPECULATIVE)[1])
    assert with_resizing(profile, [rollouts(2, -2e-4)] * 20, THREADS).lane("cpu1").resize_s == 0


def test_with_its_price_a_step_after_one_of_other_rows_takes_what_it_took() -> None:
    profile = constant_steps(run_of(SPECULATIVE)[1])
    runs = [rollouts(2, 5e-4)] * 40
    priced = with_resizing(profile, runs, THREADS)
    ratios = [value_of(level(runs[0], "cpu1", (Work.ROLLOUT_STEP,), one)) for one in (profile, priced)]
    assert ratios[1] / ratios[0] == pytest.approx(3 / 3.5, rel=0.01)


def test_what_starts_of_branches_take_more_is_told_by_runs_with_features_alone() -> None:
    schedule = MIRROR_WITH_FEATURES
    roots = sum(schedule.exit_roots_per_row)
    steps = [(number + 0.1 * place, roots + 2 if place == 0 else roots) for number in (1, 2) for place in range(3)]
    profile = constant_steps(run_of(schedule)[1])
    lanes = tuple(lane.model_copy(update={"draft_start": lane.draft_step}) for lane in profile.lanes)
    profile = profile.model_copy(update={"lanes": lanes})
    run = with_spans(
        schedule,
        *(
            ("cpu1", Work.BRANCH_STEP, at_s, at_s + 1e-3 + (4e-4 if rows > roots else 0.0), int(at_s), rows)
            for at_s, rows in steps
        ),
    )
    lane = with_start_waking(profile, [run] * 40, THREADS).lane("cpu1")
    assert lane.start_wake_s == pytest.approx(4e-4, rel=0.05)
    assert lane.branch_wake_s == 0
    plain = replace(run, schedule=run.schedule.model_copy(update={"exit_features": False}))
    assert with_start_waking(profile, [plain] * 40, THREADS).lane("cpu1").start_wake_s == 0


def test_what_a_round_takes_outside_of_lanes_is_told_where_they_take_turns() -> None:
    """Rounds of a second have work for half of it; dispatching and the driver take 0.3 s of the rest."""
    _, profile = run_of(SPECULATIVE)
    lanes = tuple(lane.model_copy(update={"dispatch_s": 0.1}) for lane in profile.lanes)
    profile = profile.model_copy(update={"lanes": lanes, "round_overhead_s": 0.1})
    spans = [("cpu0", Work.VERIFY, number + 0.0, number + 0.4, number, 3) for number in (1, 2)]
    spans += [("cpu1", Work.ROLLOUT_STEP, number + 0.6, number + 0.7, number, 1) for number in (1, 2)]
    run = with_spans(SPECULATIVE, *spans)
    assert outside_s(run) == pytest.approx([0.5, 0.5])
    found = with_turns(profile, [run], {"cpu0": 1, "cpu1": 1})
    assert [lane.turn_s for lane in found.lanes] == pytest.approx([0.2, 0.2]), "lanes of as many threads share it"
    apart = with_turns(profile, [run], {"cpu0": 1, "cpu1": 2})
    assert [lane.turn_s for lane in apart.lanes] == pytest.approx([0, 0.2])
    for schedule in (MIRROR, WITH_FEATURES):
        nothing = with_turns(profile, [replace(run, schedule=schedule)], {"cpu0": 1, "cpu1": 1})
        assert [lane.turn_s for lane in nothing.lanes] == [0, 0], "lanes at once, or states on their way"


# Paces


def changed(run: Run, pace) -> Run:
    """The same run, but that steps of branches of every round take `pace` of its number times as long."""
    spans = [
        span._replace(end_s=span.start_s + (span.end_s - span.start_s) * pace(span.round))
        if span.work is Work.BRANCH_STEP
        else span
        for span in run.trace.spans
    ]
    return replace(run, trace=replace(run.trace, spans=spans))


def test_the_draft_beside_the_target_is_told_round_by_round() -> None:
    run, profile = run_of(MIRROR)
    paces = draft_over_target(run, profile)
    assert paces == pytest.approx([1.0] * len(paces), rel=1e-6)
    rounds = sorted({span.round for span in run.trace.spans if span.work is Work.BRANCH_STEP and span.round})
    slower = draft_over_target(changed(run, lambda number: 1 + number / 100), profile)
    assert slower == pytest.approx([1 + number / 100 for number in rounds])
    assert draft_over_target(run_of(SPECULATIVE)[0], profile) == []


def test_how_much_paces_differ_is_that_of_rounds_and_no_stall() -> None:
    random = np.random.default_rng(1)
    run, profile = run_of(MIRROR)
    drawn = random.lognormal(0, 0.08, (40, 100))
    runs = [changed(run, own.__getitem__) for own in drawn]
    steady = with_pace_spread(profile, [run] * 40, THREADS)
    assert [lane.pace_spread for lane in steady.lanes] == pytest.approx([0, 0], abs=1e-6)
    found = with_pace_spread(profile, runs, THREADS)
    first, second = (lane.pace_spread for lane in found.lanes)
    assert first == second, "lanes of as many threads share it"
    assert second == pytest.approx(0.08, rel=0.15)
    stalled = [*runs, changed(run, lambda number: 50.0 if number == 2 else 1.0)]
    assert with_pace_spread(profile, stalled, THREADS).lane("cpu1").pace_spread == pytest.approx(second, rel=0.1)
    apart = with_pace_spread(profile, runs, {"cpu0": 1, "cpu1": 2})
    assert [lane.pace_spread for lane in apart.lanes] == [0, second]


def test_a_slow_run_is_no_slow_round() -> None:
    run, profile = run_of(MIRROR)
    runs = [changed(run, lambda _, factor=factor: factor) for factor in (0.8, 1.0, 1.5)]
    assert [lane.pace_spread for lane in with_pace_spread(profile, runs, THREADS).lanes] == pytest.approx(
        [0, 0], abs=1e-6
    )
