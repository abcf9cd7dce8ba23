import numpy as np

from decoding.tree_shape import grow, parents_of
from sim.acceptance.drawn_texts import pool_paths

LEVELS = np.array([[0.5, 0.3, 0.1], [0.6, 0.2, 0.1], [0.9, 0.05, 0.05]])


def worth(path: tuple[int, ...]) -> float:
    return float(np.prod([LEVELS[level, rank] for level, rank in enumerate(path)]))


def test_a_grown_tree_takes_the_best_nodes_in_order():
    paths = grow(worth, 12, 3, 3)
    parents_of(paths)  # refused if a node came before its parent
    every = [(a, b, c)[:depth] for a in range(3) for b in range(3) for c in range(3) for depth in (1, 2, 3)]
    best = sorted({worth(path) for path in every}, reverse=True)
    assert [worth(path) for path in paths] == sorted(map(worth, paths), reverse=True)
    assert worth(paths[-1]) >= best[len(paths)]
    assert all(len(path) == 1 for path in grow(worth, 12, 1, 3))


def test_a_dynamic_tree_expands_the_best_nodes_of_every_level():
    paths = pool_paths(LEVELS, 3, 2)
    parents_of(paths)
    assert len(paths) == 2 + 2 * 4
    assert {path[:2] for path in paths if len(path) == 3} == {(0, 0), (1, 0)}, "0.3 and 0.18, not 0.1 and 0.06"
    assert [worth(path) for path in paths] == sorted(map(worth, paths), reverse=True)
