import numpy as np
import pytest
import torch

from runtime.drafters.trees import (
    candidates_per_level,
    following,
    places_along,
    ranks_of,
    require_tree,
    window_of,
)

PATHS = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0))


def test_a_window_has_one_token_per_path_below_its_parent() -> None:
    window = window_of(PATHS, [[10, 11], [20, 21], [30]])
    assert window.tokens == (10, 11, 20, 21, 20, 30)
    assert window.parents == (-1, -1, 0, 0, 1, 3)


def test_a_tree_asks_for_as_many_candidates_as_its_worst_rank_on_a_level() -> None:
    assert candidates_per_level(PATHS) == (2, 2, 1)
    assert candidates_per_level(((0,), (1,), (2,), (2, 4))) == (3, 5)
    assert candidates_per_level(()) == ()


def test_following_is_the_text_ahead_of_every_place() -> None:
    assert following([7, 8, 9, 5], 1, 3).tolist() == [[8, 9, 5], [9, 5, -1], [5, -1, -1]]


def test_the_rank_of_a_token_is_its_place_among_the_candidates() -> None:
    candidates = torch.tensor([[4, 6, 2], [1, 3, 5], [9, 8, 7]])
    assert ranks_of(candidates, torch.tensor([2, 0, 9])).tolist() == [2, -1, 0]


def test_places_lead_from_ranks_to_nodes_until_the_tree_ends() -> None:
    ranks = np.array([[0, 1, 0], [1, 0, 0], [2, 0, 0], [0, -1, 0], [-1, 0, 0]], dtype=np.int32)
    assert places_along(ranks, PATHS, 3).tolist() == [[0, 3, 5], [1, 4, -1], [-1] * 3, [0, -1, -1], [-1] * 3]


def test_beyond_the_last_level_no_node_stands() -> None:
    ranks = np.array([[0], [1]], dtype=np.int32)
    assert places_along(ranks, PATHS, 2).tolist() == [[0, -1], [1, -1]]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ((), r"paths has no entry; expected at most 2 ranks of 0\.\.9"),
        (((0,), (1, 0)), r"path 1 of a tree is \[1, 0\]"),
        (((0,), (0, 0), (0, 0, 0)), r"paths has \[0, 0, 0\]; expected at most 2 ranks"),
        (((10,),), r"paths has \[10\]; expected at most 2 ranks of 0\.\.9"),
        (((-1,),), r"paths has \[-1\]"),
    ],
)
def test_paths_that_are_no_tree_are_refused(paths, message) -> None:
    with pytest.raises(ValueError, match=message):
        require_tree(paths, 2)
