"""Scores of random trees; the reference enumerates paths instead of keeping numbers of nodes."""

import itertools
import random

import pytest

from runtime.drafters.trees import ROOT, DynamicTree


def test_the_best_nodes_of_a_level_are_expanded_and_all_nodes_are_ranked_again() -> None:
    tree = DynamicTree(top_k=2)
    tree.expand([[7, 8]], [[-0.5, -1.0]])
    assert tree.frontier == [0, 1]
    tree.expand([[1, 2], [3, 4]], [[-1.0, -2.0], [-0.25, -3.0]])
    # paths: 7 -0.5, 8 -1.0, 8-3 -1.25, 7-1 -1.5, 7-2 -2.5, 8-4 -4.0
    assert tree.frontier == [4, 2]
    window = tree.window(4)
    assert window.tokens == (7, 8, 3, 1)
    assert window.parents == (-1, -1, 1, 0)


def test_of_equal_worth_the_shallower_then_the_earlier_stands_first() -> None:
    tree = DynamicTree(top_k=2)
    tree.expand([[7, 8]], [[-1.0, -1.0]])
    tree.expand([[1, 2], [3, 4]], [[0.0, -1.0], [0.0, -1.0]])
    assert tree.order() == [0, 1, 2, 4, 3, 5]


def test_a_child_is_found_by_its_token() -> None:
    tree = DynamicTree(top_k=2)
    tree.expand([[7, 8]], [[-1.0, -2.0]])
    tree.expand([[8, 2], [7, 4]], [[-1.0, -2.0], [-1.0, -2.0]])
    assert (tree.child(ROOT, 8), tree.child(0, 8), tree.child(1, 8)) == (1, 2, None)


@pytest.mark.parametrize("seed", range(5))
def test_every_beginning_of_the_order_is_a_tree_made_of_the_best_paths(seed) -> None:
    dice = random.Random(seed)
    top_k, depth = 3, 4
    values = {}

    def log_probs(path):
        if path not in values:
            values[path] = sorted((-dice.choice([0.0, 0.5, 1.0, 1.5, 2.0]) for _ in range(top_k)), reverse=True)
        return values[path]

    tree = DynamicTree(top_k)
    level = [((), 0.0)]
    pool = []
    for _ in range(depth):
        tree.expand([list(range(top_k)) for _ in level], [log_probs(path) for path, _ in level])
        made = [((*path, rank), score + log_probs(path)[rank]) for path, score in level for rank in range(top_k)]
        pool += made
        level = sorted(made, key=lambda item: -item[1])[:top_k]
    ranked = [path for path, _ in sorted(pool, key=lambda item: (-item[1], len(item[0])))]
    for size in range(1, len(pool) + 2):
        window = tree.window(size)
        paths = []
        for token, parent in zip(window.tokens, window.parents, strict=True):
            assert parent < len(paths)
            paths.append((*(paths[parent] if parent != ROOT else ()), token))
        assert paths == ranked[:size]
        for siblings in itertools.groupby(sorted(paths, key=lambda path: path[:-1]), key=lambda path: path[:-1]):
            found = [path[-1] for path in siblings[1]]
            assert len(set(found)) == len(found)
