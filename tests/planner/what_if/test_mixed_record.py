"""A mixed record is the recorded draft made better or worse, one step at a time."""

from dataclasses import replace

import numpy as np
import pytest

from decoding.record import AcceptanceRecord
from planner.what_if.mixed_record import Mixing, mixed_ranks, token_acceptance, whose_tokens
from tests.planner.synthetic import CHAINS, TREES, acceptance_record, sampled_record


@pytest.fixture(scope="module")
def record():
    return acceptance_record(num_prompts=8, num_tokens=80)


def lengths(record, *, with_features=False):
    return np.concatenate([prompt.match_lengths(with_features=with_features) for prompt in record.prompts])


def test_the_acceptance_of_today_changes_nothing(record):
    same = Mixing(record).at(token_acceptance(record))
    for ours, theirs in zip(same.prompts, record.prompts, strict=True):
        for name in ("rollouts", "feature_rollouts", "alternatives"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("acceptance", [0.1, 0.4, 0.8, 0.95])
def test_the_asked_acceptance_comes_out_and_texts_and_exits_stay(record, acceptance):
    mixed = Mixing(record).at(acceptance)
    assert token_acceptance(mixed) == pytest.approx(acceptance, abs=0.05)
    for ours, theirs in zip(mixed.prompts, record.prompts, strict=True):
        np.testing.assert_array_equal(ours.text, theirs.text)
        assert ours.exits is theirs.exits
        np.testing.assert_array_equal(ours.alternatives[:, 0], ours.rollouts[:, 0])


def test_no_acceptance_and_full_acceptance(record):
    assert lengths(Mixing(record).at(0.0)).max() == 0
    full = Mixing(record).at(1.0)
    for prompt in full.prompts:
        left = np.arange(len(prompt.text), 0, -1)
        np.testing.assert_array_equal(prompt.match_lengths(with_features=False), np.minimum(left, 8))


@pytest.mark.parametrize("with_features", [False, True])
def test_a_better_draft_knows_all_that_a_worse_one_does(record, with_features):
    before = np.zeros_like(lengths(record))
    for acceptance in (0.0, 0.2, 0.5, token_acceptance(record), 0.7, 0.9, 1.0):
        now = lengths(Mixing(record).at(acceptance), with_features=with_features)
        assert (now >= before).all()
        before = now


def test_behind_a_learned_token_the_draft_goes_on_as_recorded(record):
    better = Mixing(record).at(0.8)
    for ours, theirs in zip(better.prompts, record.prompts, strict=True):
        first, follow_up = ours.rollouts[:, 0] == ours.text, theirs.match_lengths(with_features=False)
        learned = np.flatnonzero(first[:-1] & (theirs.rollouts[:-1, 0] != theirs.text[:-1]))
        assert len(learned)
        reached = ours.match_lengths(with_features=False)[learned]
        assert (reached >= 1 + np.minimum(follow_up[learned + 1], 7)).all()


def test_forgotten_tokens_stay_among_the_alternatives_about_as_often_as_missed_ones(record):
    def share_held(record, where):
        held = [(p.alternatives == p.text[:, None]).any(axis=1)[w] for p, w in zip(record.prompts, where, strict=True)]
        return np.concatenate(held).mean()

    missed = [prompt.rollouts[:, 0] != prompt.text for prompt in record.prompts]
    worse = Mixing(record).at(0.1)
    forgotten = [(ours.rollouts[:, 0] != ours.text) & ~was for ours, was in zip(worse.prompts, missed, strict=True)]
    assert share_held(worse, forgotten) == pytest.approx(share_held(record, missed), abs=0.12)


def lookup_record(acceptance: float, **fields: object) -> AcceptanceRecord:
    """A record of a target without a draft model."""
    made = acceptance_record(num_prompts=6, acceptance=acceptance, chains=CHAINS)
    empty = np.zeros((0, 0), dtype=np.int32)
    prompts = tuple(replace(one, rollouts=empty, feature_rollouts=empty, alternatives=empty) for one in made.prompts)
    return replace(made, drafter=None, prompts=prompts, **fields)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.3])
def test_windows_that_are_found_keep_their_length_and_move_towards_what_is_asked(factor: float) -> None:
    record = lookup_record(0.6)
    now = token_acceptance(record)
    mixed = Mixing(record).at(factor * now)
    lengths = [[(one.chain_drafts[0] != -1).sum(axis=1).tolist() for one in made.prompts] for made in (record, mixed)]
    assert lengths[0] == lengths[1]
    if factor in (0.0, 1.0):
        assert token_acceptance(mixed) == pytest.approx(factor * now)
    else:
        assert (token_acceptance(mixed) - now) * (factor - 1) > 0


def test_without_a_draft_model_or_chains_the_first_tree_counts() -> None:
    made = lookup_record(0.6)
    ranks = np.where(np.arange(60)[:, None] < 15, 0, -1).astype(np.int32)
    prompts = tuple(replace(one, chain_drafts=(), tree_ranks=(np.repeat(ranks, 3, axis=1),)) for one in made.prompts)
    assert token_acceptance(replace(made, chains=(), trees=TREES[:1], prompts=prompts)) == 0.25


@pytest.mark.parametrize(("share", "moved", "expected"), [(0.8, -0.5, 0.4), (0.8, 1.0, 1.0), (1.0, -0.5, 0.5)])
def test_what_is_accepted_of_samples_moves_by_the_same_share(share: float, moved: float, expected: float) -> None:
    record = sampled_record(share, acceptance=0.5, num_prompts=6)
    now = token_acceptance(record)
    for prompt in Mixing(record).at(now + moved * (now if moved < 0 else 1 - now)).prompts:
        for accepted in (prompt.draft_acceptance, prompt.feature_draft_acceptance):
            assert accepted == pytest.approx(expected)
        for refused in (prompt.refused_drafts, prompt.feature_refused_drafts):
            assert (refused[:, 0] != prompt.text).all(), "also where no sample was refused before"
            assert (refused >= 0).all()


RANKS = np.array([[2, 5, 9], [3, -1, -1], [-1, -1, -1], [0, 4, -1], [1, -1, -1]], dtype=np.int32)
DRAWS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


def test_a_learned_token_comes_next_and_the_tree_goes_on_as_the_one_recorded_there():
    """The third token is learned: the fourth and fifth follow it as they do in its own tree."""
    expected = [[2, 5, 9], [3, 4, 5], [0, 1, 3], [0, 4, -1], [1, -1, -1]]
    np.testing.assert_array_equal(mixed_ranks(RANKS, 0.6, DRAWS), expected)


def test_a_forgotten_token_is_in_no_tree_and_nothing_is_drafted_behind_the_text():
    """The second token is forgotten, the first too."""
    expected = [[-1, -1, -1], [-1, -1, -1], [-1, -1, -1], [0, 4, -1], [1, -1, -1]]
    np.testing.assert_array_equal(mixed_ranks(RANKS, -0.4, DRAWS), expected)
    full = mixed_ranks(RANKS, 1.1, DRAWS)
    assert (full[:3] >= 0).all()
    assert (full[3] >= 0).tolist() == [True, True, False]
    assert (full[4] >= 0).tolist() == [True, False, False]


def test_a_better_draft_gets_more_accepted_of_trees_of_every_size_and_places_rise_along_every_path():
    tree_record = acceptance_record(num_prompts=6, num_tokens=80, trees=TREES)
    for tree in range(len(tree_record.trees)):
        for size in (4, 8, 64):
            before = 0
            for acceptance in (0.1, 0.3, token_acceptance(tree_record), 0.8, 0.99):
                mixed = Mixing(tree_record).at(acceptance)
                now = sum(prompt.tree_lengths(tree, size).sum() for prompt in mixed.prompts)
                assert now >= before
                before = now
    for prompt in Mixing(tree_record).at(0.9).prompts:
        for ranks in prompt.tree_ranks:
            for row in ranks.tolist():
                known = [rank for rank in row if rank >= 0]
                assert known == sorted(set(known))
                assert row[: len(known)] == known


def test_of_a_sampled_record_the_acceptance_is_told_of_the_likeliest_tokens_not_of_samples():
    """Rule `ratio` accepts other tokens, and more of them."""
    assert whose_tokens(acceptance_record()) == "the draft model's tokens"
    assert whose_tokens(sampled_record(0.75)) == "the draft model's likeliest tokens"
