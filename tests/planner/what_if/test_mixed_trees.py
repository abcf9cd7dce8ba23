"""Trees of a better or worse draft."""

import numpy as np
import pytest

from planner.what_if.mixed_record import token_acceptance, with_acceptance
from planner.what_if.mixed_trees import mixed_ranks
from tests.planner.synthetic import TREES, acceptance_record

RANKS = np.array([[2, 5, 9], [3, -1, -1], [-1, -1, -1], [0, 4, -1], [1, -1, -1]], dtype=np.int32)
DRAWS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


def test_nothing_changes_without_a_change():
    np.testing.assert_array_equal(mixed_ranks(RANKS, 0.0, DRAWS), RANKS)


def test_a_forgotten_token_is_in_no_tree():
    """The second token is forgotten, the first too."""
    expected = [[-1, -1, -1], [-1, -1, -1], [-1, -1, -1], [0, 4, -1], [1, -1, -1]]
    np.testing.assert_array_equal(mixed_ranks(RANKS, -0.4, DRAWS), expected)


def test_a_learned_token_comes_next_and_the_tree_goes_on_as_the_one_recorded_there():
    """The third token is learned: the fourth and fifth follow it as they do in its own tree."""
    expected = [[2, 5, 9], [3, 4, 5], [0, 1, 3], [0, 4, -1], [1, -1, -1]]
    np.testing.assert_array_equal(mixed_ranks(RANKS, 0.6, DRAWS), expected)


def test_nothing_is_drafted_behind_the_text():
    full = mixed_ranks(RANKS, 1.1, DRAWS)
    assert (full[:3] >= 0).all()
    assert (full[3] >= 0).tolist() == [True, True, False]
    assert (full[4] >= 0).tolist() == [True, False, False]


@pytest.fixture(scope="module")
def record():
    return acceptance_record(num_prompts=6, num_tokens=80, trees=TREES)


def test_a_better_draft_gets_more_accepted_whatever_the_size(record):
    for tree in range(len(record.trees)):
        for size in (4, 8, 64):
            before = 0
            for acceptance in (0.1, 0.3, token_acceptance(record), 0.8, 0.99):
                mixed = with_acceptance(record, acceptance)
                now = sum(prompt.tree_lengths(tree, size).sum() for prompt in mixed.prompts)
                assert now >= before
                before = now


def test_places_rise_along_every_path(record):
    for prompt in with_acceptance(record, 0.9).prompts:
        for ranks in prompt.tree_ranks:
            for row in ranks.tolist():
                known = [rank for rank in row if rank >= 0]
                assert known == sorted(set(known))
                assert row[: len(known)] == known
