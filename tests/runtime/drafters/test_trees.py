"""Dynamic trees of random scores against a reference that enumerates paths; static ones that are none."""

import itertools
import random

import pytest
import torch

from runtime.drafters.trees import ROOT, GrowingTree, require_tree


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
def test_paths_that_are_no_tree_are_refused(paths, message):
    with pytest.raises(ValueError, match=message):
        require_tree(paths, 2)


@pytest.mark.parametrize("seed", range(5))
def test_every_beginning_of_the_order_is_a_tree_made_of_the_best_paths(seed):
    dice = random.Random(seed)
    top_k, depth = 3, 4
    values = {}

    def log_probs(path):
        if path not in values:
            values[path] = sorted((-dice.choice([0.0, 0.5, 1.0, 1.5, 2.0]) for _ in range(top_k)), reverse=True)
        return values[path]

    tree = GrowingTree(top_k, 0, torch.zeros(1, 2))
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
