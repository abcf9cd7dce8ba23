"""Trees are grown by hand from counted paths; rounds are walked one by one."""

from collections import Counter
from itertools import product
from statistics import fmean

import numpy as np
import pytest

from decoding.tree_shape import MOST_RANKS, parents_of
from training.tasks.states_task import grow_tree, judge_heads


def ranks_of(*rows):
    return np.array(rows, dtype=np.int32)


def random_ranks(seed=0, num_rows=400):
    """Ranks that are mostly good, sometimes none."""
    generator = np.random.default_rng(seed)
    ranks = generator.geometric(0.45, size=(num_rows, 3)) - 1
    return np.where(ranks < 6, ranks, -1).astype(np.int32)


def share(ranks, path):
    return sum(list(row[: len(path)]) == list(path) for row in ranks.tolist())


def test_the_path_that_stands_most_often_is_added_first():
    ranks = ranks_of([0, 1], [0, 1], [0, 0], [1, 0], [1, 0], [1, -1], [1, -1], [-1, 0])
    assert grow_tree(ranks, 4) == ((0,), (1,), (1, 0), (0, 0)), "(1,) and (0, 1) wait for better siblings"


def test_every_step_takes_the_best_of_all_nodes_that_may_follow():
    ranks = random_ranks()
    tree = grow_tree(ranks, 40)
    for step, path in enumerate(tree):
        present = set(tree[:step])
        possible = [
            other
            for length in (1, 2, 3)
            for other in product(range(7), repeat=length)
            if other not in present
            and (len(other) == 1 or other[:-1] in present)
            and (other[-1] == 0 or (*other[:-1], other[-1] - 1) in present)
        ]
        assert share(ranks, path) == max(share(ranks, other) for other in possible)


def test_a_grown_tree_is_a_tree_whose_siblings_stand_best_first():
    tree = grow_tree(random_ranks(seed=1), 64)
    assert len(set(tree)) == 64
    parents_of(tree)
    children = Counter()
    for path in tree:
        assert path[-1] == children[path[:-1]]
        children[path[:-1]] += 1


def test_a_tree_ends_where_levels_and_ranks_end():
    tree = grow_tree(ranks_of([0], [3]), 64)
    assert sorted(tree) == [(rank,) for rank in range(MOST_RANKS)]


def test_ranks_that_no_tree_may_use_count_as_none():
    assert grow_tree(ranks_of([MOST_RANKS, 0], [1, 0], [1, 0]), 3) == ((0,), (1,), (1, 0))


@pytest.fixture
def answers():
    return [random_ranks(seed=3, num_rows=30), random_ranks(seed=4, num_rows=17)]


def rounds_by_hand(answers, paths):
    """Accepted tokens of every round: the text is followed from node to node."""
    accepted = []
    for ranks in answers:
        place = 0
        while place < len(ranks):
            path = ()
            while len(path) < 3 and (*path, int(ranks[place][len(path)])) in paths:
                path = (*path, int(ranks[place][len(path)]))
            accepted.append(len(path))
            place += len(path) + 1
    return tuple(accepted)


def test_rounds_are_those_of_the_tree_of_each_size_and_of_the_chain(answers):
    paths = grow_tree(random_ranks(), 30)
    small, big, chain = judge_heads(answers, paths, (5, 30))
    assert [row.tree_size for row in (small, big, chain)] == [5, 30, 0]
    for found, nodes in ((small, paths[:5]), (big, paths), (chain, [(0,), (0, 0), (0, 0, 0)])):
        accepted = rounds_by_hand(answers, set(nodes))
        assert found.num_rounds == len(accepted)
        assert found.mean_acceptance_length == pytest.approx(47 / len(accepted), abs=1e-4)
        assert found.conditional_acceptance_rate[0] == pytest.approx(fmean(one > 0 for one in accepted), abs=1e-4)
    assert chain.mean_acceptance_length < small.mean_acceptance_length < big.mean_acceptance_length


def test_without_answers_there_is_nothing_to_judge():
    assert judge_heads([], ((0,),), (1,)) == ()
