"""Replaying a record gives the rounds that the contract's own root choice and commits would give."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings

from costs.round_plan import step_rows
from decoding.errors import RecordError
from decoding.record import PromptRecord
from decoding.roots import choose_roots
from decoding.schedule import Schedule
from sim.acceptance.branch_hits import FROM_DRAFT, FROM_EXIT, MISS
from sim.acceptance.joined_record import NO_TOKEN
from sim.acceptance.replay import Replay
from sim.world import simulate
from tests.sim.worlds.at_random import profiles, records, schedules
from tests.sim.worlds.machines import machine
from tests.sim.worlds.records import TREES, WRONG, prompt, record
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree


class Expected(NamedTuple):
    num_accepted: int
    num_committed: int
    next_token: int
    hit: bool | None


def rounds_by_hand(one: PromptRecord, schedule: Schedule) -> list[Expected]:
    """Round by round, with lists and nothing else."""
    if schedule.is_tree:
        return tree_rounds_by_hand(one, schedule)
    text, found, position = one.text.tolist(), [], 0
    while position < len(text):
        window = window_by_hand(one, schedule, position)
        following = text[position:]
        accepted = 0
        while accepted < min(len(window), len(following)) and window[accepted] == following[accepted]:
            accepted += 1
        committed = min(accepted + 1, len(following))
        next_token = following[accepted] if accepted < len(following) else -1
        is_last = committed == len(following)
        hit = None
        if schedule.method == "mirror" and not is_last:
            hit = (accepted, next_token) in roots_by_hand(one, schedule, window, position, accepted)
        found.append(Expected(accepted, committed, next_token, hit))
        position += committed
    return found


def window_by_hand(one: PromptRecord, schedule: Schedule, position: int) -> list[int]:
    if schedule.method == "autoregressive":
        return []
    drafts = one.drafts(with_features=schedule.exit_features)
    if schedule.method == "prompt_lookup":
        [drafts] = one.chain_drafts
    return [token for token in drafts[position].tolist()[: schedule.num_speculative_tokens] if token != -1]


def tree_rounds_by_hand(one: PromptRecord, schedule: Schedule) -> list[Expected]:
    """A node stands if its place lies within the tree; the first pass of streaming has no tree."""
    [place] = [place for place, known in enumerate(TREES) if known.answers(schedule)]
    text, found, position = one.text.tolist(), [], 0
    while position < len(text):
        accepted = 0
        if position or schedule.method != "speculative_streaming":
            for rank in one.tree_ranks[place][position].tolist():
                if not 0 <= rank < schedule.tree_size:
                    break
                accepted += 1
        left = len(text) - position
        next_token = text[position + accepted] if accepted < left else -1
        found.append(Expected(accepted, min(accepted + 1, left), next_token, None))
        position += accepted + 1
    return found


def roots_by_hand(
    one: PromptRecord, schedule: Schedule, window: list[int], position: int, accepted: int
) -> list[tuple[int, int]]:
    rows = slice(position, position + accepted + 1)
    from_draft = one.alternatives[rows, : schedule.num_alternatives].tolist()
    draft_roots = choose_roots(window, from_draft, schedule.draft_roots_per_row)
    if schedule.exit_layer is None:
        return list(draft_roots)
    from_exit = one.exits[schedule.exit_layer][rows, : schedule.num_exit_candidates].tolist()
    return [*draft_roots, *choose_roots(window, from_exit, schedule.exit_roots_per_row, known=draft_roots)]


@given(schedules(), records(), profiles())
@settings(max_examples=150, deadline=None)
def test_rounds_and_hits_are_those_of_the_contract(schedule, texts, profile):
    for trace, one in zip(simulate(schedule, profile, texts, trace=False), texts.prompts, strict=True):
        played = [Expected(r.num_accepted, r.num_committed, r.outcome[1], r.hit) for r in trace.rounds]
        assert played == rounds_by_hand(one, schedule)


@given(schedules(method="mirror"), records())
@settings(max_examples=150, deadline=None)
def test_without_a_window_a_round_has_the_roots_of_the_row_after_one(schedule, texts):
    """As if everything had been accepted that was drafted, which is nothing."""
    replay, [one, *_] = Replay(texts), texts.prompts
    from_draft, from_exit = schedule.draft_roots_per_row[-1:], schedule.exit_roots_per_row[-1:]
    num_fresh, alone = [], replay.outcomes(schedule, None).branches_of_no_window
    for position, token in enumerate(one.text.tolist()):
        candidates = one.alternatives[[position], : schedule.num_alternatives].tolist()
        draft_roots, exit_roots = choose_roots((), candidates, from_draft), ()
        if schedule.exit_layer is not None:
            candidates = one.exits[schedule.exit_layer][[position], : schedule.num_exit_candidates].tolist()
            exit_roots = choose_roots((), candidates, from_exit, known=draft_roots)
        expected = FROM_DRAFT if (0, token) in draft_roots else FROM_EXIT if (0, token) in exit_roots else MISS
        assert alone[position] == expected
        num_fresh.append(len(exit_roots))
    if len(texts.prompts) == 1:
        roots = max(1, round(np.mean(num_fresh))) if schedule.root_source == "hybrid" else from_exit[0]
        assert replay.num_exit_roots(schedule, 0) == roots


def test_budgets_are_always_filled():
    shape = Replay(record(prompt("0"))).shape(mirror("exit"))
    rows = step_rows(mirror("exit", exit_top_k=1, num_tokens=3), shape.num_exit_roots)
    assert rows == {"one_row": 1, "last_drafted": 1, "exit_roots": 3, "exit_later": 3}


def test_roots_that_both_sources_name_are_counted_once():
    """In expectation over the text, since the exit's candidates behind a wrong token are unknown."""

    def num_exit_roots(alternatives, exits=(1, 2)):
        one = prompt("0000")
        changes = {
            "exits": dict.fromkeys(one.exits, np.tile(np.array(exits, dtype=np.int32), (4, 1))),
            "alternatives": np.tile(np.array(alternatives, dtype=np.int32), (4, 1)),
        }
        texts = record(replace(one, **changes))
        return Replay(texts).shape(mirror("hybrid", num_tokens=3, exit_top_k=1, draft_top_k=2)).num_exit_roots

    assert num_exit_roots((WRONG, 3, 4)) == 4
    # one of two candidates is the draft's already: the other takes its place
    assert num_exit_roots((WRONG, 1, 4)) == 4
    # both are, but behind the window, where no drafted token is left out, the draft names only one of them
    assert num_exit_roots((WRONG, 1, 2)) == 1
    # the drafted token is no root, though the draft does not name it; behind the window it is one
    assert num_exit_roots((3, 1, 4), (WRONG, 1)) == 1
    # neither is an unused place
    assert num_exit_roots((WRONG, 1, 4), (1, NO_TOKEN)) == 1


@given(records())
@settings(max_examples=30, deadline=None)
def test_what_a_replay_keeps_does_not_depend_on_what_it_was_asked_before(texts):
    kept = Replay(texts)
    for most in (None, 1 + texts.max_new_tokens // 2, None):
        for schedule in (mirror("exit"), mirror("exit", num_tokens=1), mirror("hybrid"), mirror("draft")):
            fresh = Replay(texts)
            found, wanted = (one.branches(schedule, one.walk(schedule, most)) for one in (kept, fresh))
            assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (speculative(5), "windows of more than 4 tokens were not recorded"),
        (mirror("exit", exit_layer=5), "roots from exit_layer 5 were not recorded; layers it holds: 4, 7"),
        (mirror("exit", exit_top_k=2), "more than 1 roots per row from the exit after layer 4 were not recorded"),
        (mirror("draft", draft_top_k=2), "more than 1 roots per row from the draft were not recorded"),
        (mirror("exit", exit_features=True), "the exit after layer 4 cannot send features of layer 6"),
    ],
)
def test_a_record_answers_only_for_what_was_recorded(schedule, message):
    texts = record(prompt("010"), feature_layers=(2, 6))
    with pytest.raises(RecordError, match=message):
        Replay(texts).outcomes(schedule, None)
    with pytest.raises(RecordError, match=message):
        Replay(texts).walk(schedule, None)


def test_a_tree_whose_drafter_is_not_named_is_refused_with_the_drafters_recorded():
    texts = record(replace(prompt("010"), tree_ranks=(np.zeros((3, 3), dtype=np.int32),)), trees=TREES[:1])
    unnamed = tree(TREES[0], 3).model_copy(update={"drafter": None})
    with pytest.raises(
        RecordError, match="trees of medusa, 3 deep need the name of a drafter; .* medusa of head, 3 deep"
    ):
        Replay(texts).walk(unnamed, None)


def test_a_text_cannot_be_replayed_beyond_its_cut():
    with pytest.raises(RecordError, match=r"max_new_tokens is 4; the record's texts allow 1\.\.3"):
        simulate(AUTOREGRESSIVE, machine(), record(prompt("010")), max_new_tokens=4)


def test_an_empty_record_is_refused():
    with pytest.raises(RecordError, match="has no prompt, or one without text"):
        Replay(record(prompt("1"), prompts=(), max_new_tokens=1))


def test_what_the_target_says_behind_the_text_is_unknown():
    [trace] = simulate(speculative(4), machine(), record(prompt("111")))
    assert [(entry.num_accepted, entry.num_committed, entry.outcome) for entry in trace.rounds] == [(3, 3, (3, -1))]
