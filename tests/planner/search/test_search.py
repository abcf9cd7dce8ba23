"""The search finds the minimum of what it enumerates, and picks schedules worth running."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import PlanError
from planner.search.search import pick_demo_schedules, rank, search
from planner.search.space import FEWEST, SearchSpace, choosing_part, halves, judging_part, only, survey
from sim.evaluator import predict
from tests.planner.synthetic import (
    HEADS_S,
    TREES,
    acceptance_record,
    machine,
    sampled_record,
    table,
    with_equal_texts,
)

SMALL = SearchSpace(windows=(2, 4), exit_top_k=(1, 4), draft_top_k=(2,), uneven_roots=(6,))


@pytest.fixture(scope="module")
def result(profile, record):
    return search(SMALL, profile, record)


def test_all_are_ranked_over_all_prompts(result, profile, record):
    times = [predict(schedule, profile, record).tpot_s for schedule in survey(SMALL, profile, record).schedules]
    assert [candidate.tpot_s for candidate in result.candidates] == sorted(times)


def test_the_winner_is_the_fastest_on_the_prompts_to_choose_on(profile, record):
    result = search(SMALL.model_copy(update={"root_sources": ("exit", "draft")}), profile, record)
    to_choose_on = only(record, halves(record).choosing)
    times = {one.schedule: predict(one.schedule, profile, to_choose_on).tpot_s for one in result.candidates}
    assert result.winner.schedule == min(times, key=times.__getitem__)
    assert [times[one.schedule] for one in result.by_choice.candidates] == pytest.approx(sorted(times.values()))
    assert result.by_choice.best(kind="plain") in result.candidates, "with its numbers over all prompts"


def test_prompts_to_judge_on_change_neither_budgets_nor_the_choice(record):
    profile, space = machine(draft_step_s=0.01), SMALL.model_copy(update={"exit_features": (False,)})
    other = acceptance_record(num_prompts=8, acceptance=0.0).prompts[4:]
    parts = halves(record)
    prompts = [other[place] if place in parts.judging else record.prompts[place] for place in range(4)]
    changed = search(space, profile, replace(record, prompts=tuple(prompts)))
    unchanged = search(space, profile, record)
    assert {one.schedule for one in changed.candidates} == {one.schedule for one in unchanged.candidates}
    assert changed.winner.schedule == unchanged.winner.schedule
    assert changed.winner.schedule != changed.candidates[0].schedule, "over all prompts another one leads"


@pytest.mark.parametrize(("share", "rule"), [(0.95, "ratio"), (0.1, "match")])
def test_the_rule_by_which_more_is_accepted_wins(profile, share, rule):
    result = search(SMALL, profile, sampled_record(share, acceptance=0.5))
    assert result.winner.schedule.verification == rule


def test_ties_go_to_what_was_enumerated_first(profile, record):
    schedules = survey(SMALL.model_copy(update={"methods": ("autoregressive",)}), profile, record).schedules
    lanes = [candidate.schedule.target_lane for candidate in rank(schedules, profile, record).candidates]
    assert lanes == ["both", "target", "draft"]


def test_an_empty_space_is_an_error_that_says_what_there_is(profile, record):
    with pytest.raises(PlanError, match=r"lanes target, draft, both .* windows up to 8, exits \[15, 20\] and 0 kinds"):
        search(SMALL.model_copy(update={"methods": ("mirror",), "placements": ("pooled",)}), profile, record)


def test_demo_schedules_span_all_kinds_and_both_ends(result):
    picked = pick_demo_schedules(result)
    schedules = [candidate.schedule for candidate in picked]
    assert len(set(schedules)) == len(schedules) >= 8
    for placement in ("split", "pooled"):
        for method in ("autoregressive", "speculative"):
            assert result.best(method=method, placement=placement) in picked
    for source in ("exit", "draft", "hybrid"):
        assert result.best(method="mirror", root_source=source) in picked
    slowest = {
        method: max(c.tpot_s for c in result.candidates if c.schedule.method == method)
        for method in ("speculative", "mirror")
    }
    assert {candidate.tpot_s for candidate in picked} >= set(slowest.values())
    assert result.winner in picked
    assert result.by_choice.best(kind="plain") in picked
    assert result.by_choice.best_drafting() in picked


def test_the_best_tree_is_among_the_demo_schedules_and_so_is_every_leading_tree_method(profile):
    among_trees = search(SMALL, profile, acceptance_record(trees=TREES))
    best, picked = among_trees.best(kind="tree"), pick_demo_schedules(among_trees)
    assert best.tpot_s == min(among_trees.best(method=one.method).tpot_s for one in TREES), "all of one kind"
    assert best in picked
    methods = list(dict.fromkeys(candidate.schedule.method for candidate in among_trees.candidates))
    trees = {candidate.schedule.method for candidate in picked if candidate.schedule.is_tree}
    assert trees == {method for method in methods[:3] if method in {one.method for one in TREES}}
    assert len(trees) > 1, "the made-up heads are good enough for more than one"


def test_a_slow_tree_is_run_all_the_same(profile):
    slow = {name: table(1.0) for name in HEADS_S}
    lanes = tuple(one.model_copy(update={"heads": slow, "streams": {}}) for one in profile.lanes)
    result = search(SMALL, profile.model_copy(update={"lanes": lanes}), acceptance_record(trees=TREES))
    picked = [one for one in pick_demo_schedules(result) if one.schedule.is_tree]
    assert picked == [result.best(kind="tree")]


def test_demo_schedules_are_filled_up_where_kinds_are_missing(profile, record):
    space = SMALL.model_copy(update={"methods": ("speculative",)})
    result = search(space, profile, record)
    picked = pick_demo_schedules(result)
    assert len(picked) == len({candidate.schedule for candidate in picked}) == min(8, len(result.candidates))


EIGHT = acceptance_record(num_prompts=8, num_tokens=4)


def of_kinds(kinds):
    prompts = (replace(EIGHT.prompts[0], name=str(place), category=kind) for place, kind in enumerate(kinds))
    return replace(EIGHT, prompts=tuple(prompts))


@given(st.lists(st.sampled_from("abc"), min_size=FEWEST, max_size=20), st.integers(1, 4))
def test_every_prompt_is_in_one_half_with_all_its_texts_and_kinds_are_shared_out(kinds, num_texts):
    parts = halves(with_equal_texts(of_kinds(kinds), num_texts))
    assert sorted(parts.choosing + parts.judging) == list(range(num_texts * len(kinds)))
    prompts = [Counter(place // num_texts for place in half) for half in (parts.choosing, parts.judging)]
    assert {*prompts[0].values(), *prompts[1].values()} == {num_texts}
    assert len(prompts[0]) - len(prompts[1]) in (0, 1)
    counts = [Counter(kinds[prompt] for prompt in half) for half in prompts]
    assert all(abs(counts[0][kind] - counts[1][kind]) <= 1 for kind in "abc")


@pytest.mark.parametrize(
    ("kinds", "choosing", "judging"),
    [("abababab", (0, 1, 4, 5), (2, 3, 6, 7)), ("aaaaa", (0, 2, 4), (1, 3))],
    ids=["kinds that alternate", "one kind"],
)
def test_halves_are_records_of_their_prompts(kinds, choosing, judging):
    record = of_kinds(kinds)
    assert (halves(record).choosing, halves(record).judging) == (choosing, judging)
    assert choosing_part(record).prompts == tuple(record.prompts[place] for place in choosing)
    assert judging_part(record).prompts == tuple(record.prompts[place] for place in judging)


@pytest.mark.parametrize("num_texts", [1, 2])
def test_few_prompts_are_not_parted(num_texts):
    record = with_equal_texts(of_kinds("aab"), num_texts)
    assert halves(record) is None
    assert choosing_part(record) is judging_part(record) is record
