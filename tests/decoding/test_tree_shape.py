import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.tree_shape import cut, level_rows, parents_of, places_along

PATHS = ((0,), (0, 0), (1,), (0, 1), (0, 0, 0), (1, 0))


def test_what_is_too_deep_makes_room_for_others():
    assert cut(PATHS, 5, 2) == ((0,), (0, 0), (1,), (0, 1), (1, 0))
    assert cut(PATHS, 2, 1) == ((0,), (1,))


@pytest.mark.parametrize("paths", [((),), ((0,), (0,)), ((1, 0), (1,))])
def test_an_order_that_is_no_tree_is_refused(paths):
    with pytest.raises(ValueError, match="empty or a repeat, or comes before its parent"):
        parents_of(paths)


def test_rows_of_each_pass_are_the_nodes_with_children():
    assert level_rows(PATHS) == (1, 2, 1)
    assert level_rows(((0,), (1,))) == (1,)
    assert level_rows(()) == ()


@given(st.integers(1, 6), st.integers(1, 3))
def test_every_beginning_is_a_tree(size, depth):
    paths = cut(PATHS, size, depth)
    parents = parents_of(paths)
    assert all(parent < place for place, parent in enumerate(parents))
    assert sum(level_rows(paths)) == len({path[:-1] for path in paths})


def test_a_text_is_followed_from_every_position_as_far_as_the_tree_goes():
    paths = ((0,), (1,), (0, 1), (0, 1, 0), (1, 0))
    ranks = np.array([[0, 1, 0], [1, 0, 0], [0, 0, -1], [5, -1, -1]])
    assert places_along(ranks, paths, 4).tolist() == [[0, 2, 3, -1], [1, 4, -1, -1], [0, -1, -1, -1], [-1] * 4]
