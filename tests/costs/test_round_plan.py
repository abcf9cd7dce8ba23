"""How wide a round is."""

import pytest

from costs.round_plan import RoundShape, tree_shape
from decoding.record import RecordedTree
from decoding.schedule import Schedule
from tests.sim.worlds.records import PATHS
from tests.sim.worlds.schedules import tree


def drafted(method: str, size: int, *, depth: int = 3, top_k: int = 0) -> Schedule:
    return tree(RecordedTree(method=method, drafter="head", depth=depth, top_k=top_k), size)


@pytest.mark.parametrize(
    ("size", "depth", "top_k", "shape"),
    [
        (8, 3, 2, RoundShape(8, level_rows=(2, 2))),
        # two children of the root, then twice four candidates: there are no more nodes
        (16, 3, 2, RoundShape(10, level_rows=(2, 2))),
        (1, 1, 4, RoundShape(1)),
        (8, 1, 4, RoundShape(4)),
        (60, 5, 10, RoundShape(60, level_rows=(10, 10, 10, 10))),
    ],
)
def test_a_dynamic_tree_is_cut_from_the_pool_of_its_candidates(size, depth, top_k, shape):
    assert tree_shape(drafted("eagle2", size, depth=depth, top_k=top_k), ()) == shape


@pytest.mark.parametrize(
    ("size", "depth", "num_nodes", "level_rows"),
    [
        # of (0) (1) (00) (01) (10): both nodes of the first level have children
        (5, 3, 5, (2,)),
        (6, 3, 6, (2, 1)),
        (3, 3, 3, (1,)),
        # without (000) there are six
        (7, 2, 6, (2,)),
        (20, 3, 7, (2, 1)),
    ],
)
def test_a_static_tree_is_a_beginning_of_its_paths(size, depth, num_nodes, level_rows):
    assert tree_shape(drafted("hydra", size, depth=depth), PATHS) == RoundShape(num_nodes, level_rows=level_rows)
    assert tree_shape(drafted("medusa", size, depth=depth), PATHS) == RoundShape(num_nodes)
    assert tree_shape(drafted("speculative_streaming", size, depth=depth), PATHS) == RoundShape(num_nodes)
