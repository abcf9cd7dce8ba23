import numpy as np

from decoding.tree_shape import parents_of
from sim.acceptance.drawn_texts import best_paths, pool_paths, ranks_along

LEVELS = np.array([[0.5, 0.3, 0.1], [0.6, 0.2, 0.1], [0.9, 0.05, 0.05]])


def worth(path: tuple[int, ...]) -> float:
    return float(np.prod([LEVELS[level, rank] for level, rank in enumerate(path)]))


def test_a_grown_tree_takes_the_best_nodes_in_order():
    paths = best_paths(LEVELS, 3, 12)
    parents_of(paths)  # refused if a node came before its parent
    every = [(a, b, c)[:depth] for a in range(3) for b in range(3) for c in range(3) for depth in (1, 2, 3)]
    best = sorted({worth(path) for path in every}, reverse=True)
    assert [worth(path) for path in paths] == sorted(map(worth, paths), reverse=True)
    assert worth(paths[-1]) >= best[len(paths)]
    assert all(len(path) == 1 for path in best_paths(LEVELS, 1))


def test_a_dynamic_tree_expands_the_best_nodes_of_every_level():
    paths = pool_paths(LEVELS, 3, 2)
    parents_of(paths)
    assert len(paths) == 2 + 2 * 4
    assert {path[:2] for path in paths if len(path) == 3} == {(0, 0), (1, 0)}, "0.3 and 0.18, not 0.1 and 0.06"
    assert [worth(path) for path in paths] == sorted(map(worth, paths), reverse=True)


def test_a_text_is_followed_from_every_position_as_far_as_the_tree_goes():
    paths = ((0,), (1,), (0, 1), (0, 1, 0), (1, 0))
    ranks = np.array([0, 1, 0, 0])
    found = ranks_along(paths, np.repeat(ranks[:, None], 3, axis=1))
    assert found.tolist() == [[0, 2, 3], [1, 4, -1], [0, -1, -1], [0, -1, -1]]


def test_the_rank_of_a_token_may_differ_by_the_level_it_would_stand_on():
    found = ranks_along(((0,), (0, 1)), np.array([[0, 0], [0, 1], [5, 5]]))
    assert found.tolist() == [[0, 1], [0, -1], [-1, -1]]
