"""The search asks only what was measured and recorded, and asks all of it."""

import re
from dataclasses import replace

import numpy as np
import pytest

from costs.round_plan import step_rows
from decoding.errors import ConfigError, ProfileError, RecordError
from decoding.methods import METHODS
from decoding.record import RecordedChain, RecordedTree
from hwprofiles.profile import Profile
from planner.search.space import SearchSpace, enumerate_schedules, placement_name, survey
from planner.what_if.mixed_record import Mixing
from sim.acceptance.replay import Replay
from sim.evaluator import Evaluator, predict
from tests.planner.synthetic import (
    CHAINS,
    EXIT_LAYERS,
    PATHS,
    TREES,
    acceptance_record,
    lane,
    machine,
    sampled_record,
    table,
)

SMALL = SearchSpace(windows=(2, 4), exit_top_k=(1, 4), draft_top_k=(2,), uneven_roots=(6,))


def test_what_varies_may_be_numbers_and_arrays_of_numpy():
    found = SearchSpace(windows=np.arange(2, 5), exit_top_k=[np.int64(3)], tree_sizes=(np.int32(8),))
    assert (found.windows, found.exit_top_k, found.tree_sizes) == ((2, 3, 4), (3,), (8,))
    with pytest.raises(ConfigError, match="windows"):
        SearchSpace(windows=np.array([1.5]))


def test_every_method_and_root_source_is_offered_once(profile):
    blocks = RecordedChain(method="block", drafter="eagle")
    schedules = survey(SMALL, profile, acceptance_record(trees=TREES, chains=(*CHAINS, blocks))).schedules
    assert {schedule.method for schedule in schedules} == set(METHODS)
    assert {schedule.root_source for schedule in schedules} == {None, "exit", "draft", "hybrid"}
    assert len(set(schedules)) == len(schedules)
    both_ways = {("target", "draft"), ("draft", "target")}
    for method, lanes in (("mirror", both_ways), ("speculative", {*both_ways, ("both", "both")})):
        found = [schedule for schedule in schedules if schedule.method == method]
        assert {(schedule.target_lane, schedule.draft_lane) for schedule in found} == lanes
        assert all((placement_name(one, profile) == "pooled") == one.is_pooled for one in found)


@pytest.mark.parametrize(
    ("max_window", "longer", "assumed"),
    [(8, [], None), (4, [], None), (11, [9, 11], None), (16, [10, 12, 14, 16], None), (16, [], "0.8")],
)
def test_windows_are_as_long_as_was_recorded(profile, max_window, longer, assumed):
    record = acceptance_record(num_prompts=1, num_tokens=9, max_window=max_window, chains=CHAINS)
    every = enumerate_schedules(SearchSpace(), profile, replace(record, assumed=assumed))
    for method in ("speculative", "mirror", "prompt_lookup"):
        found = {one.num_speculative_tokens for one in every if one.method == method}
        assert sorted(found) == [*range(1, 9), *longer], method


@pytest.mark.parametrize(
    ("record", "asked", "rules"),
    [
        (sampled_record(0.7, num_prompts=1), None, {"match", "ratio"}),
        (sampled_record(0.7, num_prompts=1), ("ratio",), {"ratio"}),
        (acceptance_record(num_prompts=1), None, {"match"}),
    ],
)
def test_of_sampled_texts_both_rules_are_tried_for_what_the_draft_model_drafts(profile, record, asked, rules):
    space = SMALL.model_copy(update={"verification": asked})
    offered = survey(space, profile, record).schedules
    for method in ("speculative", "mirror"):
        assert {one.verification for one in offered if one.method == method} == rules
    others = [one for one in offered if not one.traits.has_draft_model]
    assert {one.verification for one in others} == {"match"}


def test_samples_with_features_that_were_not_recorded_are_left_out_by_name(profile):
    made = sampled_record(0.7, num_prompts=2)
    without = {"feature_draft_acceptance": made.prompts[0].draft_acceptance[:0]}
    found = survey(SMALL, profile, replace(made, prompts=tuple(replace(one, **without) for one in made.prompts)))
    assert "what is accepted of samples with exit_features (verification ratio) was not recorded" in found.left_out
    assert not any(one.exit_features and one.verification == "ratio" for one in found.schedules)


def trees_of(method, profile, space=SMALL, record=None):
    schedules = survey(space, profile, record or acceptance_record(trees=TREES)).schedules
    return [schedule for schedule in schedules if schedule.method == method]


def test_heads_run_split_both_ways_and_pooled_and_streams_where_the_target_runs_alone(profile):
    places = {(schedule.target_lane, schedule.draft_lane) for schedule in trees_of("eagle3", profile)}
    assert places == {("target", "draft"), ("draft", "target"), ("both", "both")}
    streaming = trees_of("speculative_streaming", profile)
    places = {(schedule.target_lane, schedule.draft_lane) for schedule in streaming}
    assert places == {("target", None), ("draft", None), ("both", None)}
    assert {placement_name(schedule, profile) for schedule in streaming} == {"split", "pooled"}


@pytest.mark.parametrize("tree", TREES)
def test_trees_name_their_own_drafters_whatever_the_main_one(profile, tree):
    found = trees_of(tree.method, profile.model_copy(update={"drafter": None}))
    assert {schedule.drafter for schedule in found} == {tree.drafter}


@pytest.mark.parametrize(
    ("method", "sizes", "found"),
    [
        # no tree is larger than its paths or its pool, or smaller than it is deep
        ("medusa", (2, 3, 8, 32, 64), {3, 8, len(PATHS)}),
        ("eagle2", (2, 4, 8, 32, 64), {4, 8, 32, 52}),
    ],
)
def test_sizes_of_trees_stay_within_what_there_is(profile, method, sizes, found):
    schedules = trees_of(method, profile, SMALL.model_copy(update={"tree_sizes": sizes}))
    assert {schedule.tree_size for schedule in schedules} == found


def test_depths_and_top_k_of_trees_can_be_narrowed(profile):
    shapes = [RecordedTree(method="eagle2", drafter="eagle", depth=d, top_k=k) for d in (2, 3) for k in (2, 4)]
    record = acceptance_record(trees=tuple(shapes))

    def found(**changes):
        schedules = trees_of("eagle2", profile, SMALL.model_copy(update=changes), record)
        return {(schedule.num_speculative_tokens, schedule.tree_top_k) for schedule in schedules}

    assert found() == {(2, 2), (2, 4), (3, 2), (3, 4)}
    assert found(tree_depths=(3,)) == {(3, 2), (3, 4)}
    assert found(tree_top_k=(2,)) == {(2, 2), (3, 2)}


def test_a_device_without_cores_is_pooled_by_itself(record):
    gpu = lane("gpu", ()).model_copy(update={"device": "cuda:0"})
    profile = machine().model_copy(update={"lanes": (gpu, lane("cpu", (0, 1))), "links": (), "contention": ()})
    schedules = survey(SMALL, profile, record).schedules
    assert ("gpu", "gpu") in {(s.target_lane, s.draft_lane) for s in schedules if s.method == "speculative"}
    assert ("gpu", "cpu") in {(s.target_lane, s.draft_lane) for s in schedules if s.method == "mirror"}
    plain = [schedule for schedule in schedules if schedule.method == "autoregressive"]
    assert [(s.target_lane, placement_name(s, profile)) for s in plain] == [("gpu", "pooled"), ("cpu", "pooled")]


def test_streams_of_the_draft_are_offered_beside_none_where_they_were_recorded_and_timed(profile):
    """As far as a window has room for them."""

    def streams(profile=profile, record=acceptance_record(num_streams=2), **fields):  # noqa: B008
        space = SMALL.model_copy(update={"windows": (1, 2, 3, 4), "methods": ("speculative",)} | fields)
        schedules = survey(space, profile, record).schedules
        return {(schedule.num_speculative_tokens, schedule.draft_streams) for schedule in schedules}

    none = {(1, 0), (2, 0), (3, 0), (4, 0)}
    assert streams() == none | {(3, 1), (4, 2)}
    assert streams(draft_streams=(1,)) == {(1, 0), (2, 0), (3, 1), (4, 1)}
    assert streams(record=acceptance_record(num_streams=1), draft_streams=(0, 2)) == none | {(3, 1)}
    blind = [lane.model_copy(update={"draft_streams": None}) for lane in profile.lanes]
    assert streams(profile.model_copy(update={"lanes": tuple(blind)})) == none
    assert streams(record=acceptance_record()) == none


def test_branches_are_asked_to_guess_where_steps_of_all_of_them_were_measured(profile):
    """Four tokens, five roots of the draft or of the exit, or both: two guesses each."""
    record = acceptance_record(num_streams=2)
    wide = [lane.model_copy(update={"draft_streams": table(1e-3, rows=(1, 2, 20))}) for lane in profile.lanes]
    machine = profile.model_copy(update={"lanes": tuple(wide)})
    space = SearchSpace(windows=(4,), methods=("mirror",), exit_top_k=(1,), draft_top_k=(1,), uneven_roots=())
    found = {(one.root_source, one.draft_streams) for one in survey(space, machine, record).schedules}
    assert found == {(source, streams) for source in ("draft", "exit", "hybrid") for streams in (0, 2)}
    assert {one.draft_streams for one in survey(space, profile, record).schedules} == {0}


def test_uneven_budgets_come_for_exit_and_draft_roots(profile, record):
    uneven = [s for s in survey(SMALL, profile, record).schedules if s.roots_per_row]
    assert {schedule.root_source for schedule in uneven} == {"exit", "draft"}
    assert all(sum(schedule.roots_per_row) <= 6 and len(set(schedule.roots_per_row)) > 1 for schedule in uneven)


@pytest.mark.parametrize("sizes", [{"num_prompts": 0}, {"num_prompts": 1, "num_tokens": 2100}])
def test_a_record_without_prompts_or_beyond_the_tables_offers_nothing(profile, sizes):
    assert survey(SMALL, profile, acceptance_record(**sizes)).schedules == ()


def narrow_machine(rows: tuple[int, ...]) -> Profile:
    """A machine whose draft was measured with fewer rows, and whose exits with other ones."""
    narrow = dict.fromkeys(("draft_step", "draft_step_features", "draft_start"), table(6e-3, rows=rows))
    profile = machine()
    return profile.model_copy(update={"lanes": tuple(lane.model_copy(update=narrow) for lane in profile.lanes)})


WIDE = SearchSpace(
    windows=(1, 3, 8, 9),
    exit_layers=(10, *EXIT_LAYERS),
    exit_top_k=(1, 8, 9),
    draft_top_k=(1, 5, 6),
    draft_streams=(0, 1),
    tree_sizes=(4, 32),
)


def without(**fields):
    """A machine on whose first lane something was not measured."""
    profile = machine()
    return profile.model_copy(update={"lanes": (profile.lanes[0].model_copy(update=fields), *profile.lanes[1:])})


@pytest.mark.parametrize(
    ("profile", "sizes"),
    [
        (narrow_machine((1, 2, 4)), {"with_features": False}),
        (narrow_machine((1, 2, 4, 8, 16)), {}),
        (without(exit={}, heads={}, streams={}), {}),
    ],
    ids=["narrow", "wider", "no exits and heads on a lane"],
)
def test_what_is_offered_and_what_the_evaluator_takes_are_the_same(profile, sizes):
    record = acceptance_record(trees=TREES, **sizes)
    evaluator, schedules = Evaluator(profile, record), enumerate_schedules(WIDE, profile, record)
    assert len(schedules) > 700
    offered = set(survey(WIDE, profile, record, evaluator).schedules)
    for schedule in schedules:
        reason = evaluator.missing(schedule)
        assert (reason is None) == (schedule in offered)
        if reason is None:
            evaluator.predict(schedule)
        else:
            with pytest.raises((ProfileError, RecordError, ConfigError), match=re.escape(reason)):
                evaluator.predict(schedule)


def test_a_search_counts_what_it_left_out_and_names_what_was_missing(record):
    profile = narrow_machine((1, 2, 4))
    found = survey(WIDE, profile, record)
    reasons = "\n".join(found.left_out)
    assert "windows of more than 8 tokens were not recorded" in reasons
    assert "roots from exit_layer 10 were not recorded; layers it holds: 15, 20" in reasons
    assert "draft_step on lane 'draft': more than 4 rows were not measured" in reasons
    assert "more than 8 roots per row from the exit after layer 15 were not recorded" in reasons
    assert min(found.left_out.values()) > 0
    assert sum(found.left_out.values()) + len(found.schedules) == len(enumerate_schedules(WIDE, profile, record))


def test_a_schedule_is_offered_only_if_its_widest_possible_step_was_measured(record):
    """How many roots draft and exit have in common differs by text: a part of the record may come to wider steps."""
    replay = Replay(record)
    hybrids = [one for one in survey(WIDE, machine(), record).schedules if one.root_source == "hybrid"]
    widths = {one: max(step_rows(one, replay.shape(one).num_exit_roots).values()) for one in hybrids}
    tight = next(one for one in hybrids if widths[one] < max(step_rows(one, sum(one.exit_roots_per_row)).values()))
    reason = Evaluator(narrow_machine((1, widths[tight])), record).missing(tight)
    assert reason is not None
    assert f"more than {widths[tight]} rows were not measured" in reason
    wide = narrow_machine((1, max(step_rows(tight, sum(tight.exit_roots_per_row)).values())))
    for acceptance in (0.05, 0.5, 0.95):
        mixed = Mixing(record).at(acceptance)
        for part in (mixed, *(replace(mixed, prompts=(prompt,)) for prompt in mixed.prompts)):
            assert predict(tight, wide, part)
