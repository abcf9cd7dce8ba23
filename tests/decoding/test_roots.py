from hypothesis import given
from hypothesis import strategies as st

from decoding.messages import Root, Verdict
from decoding.roots import choose_roots

TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)


def test_a_row_ends_a_round_only_with_another_token_than_the_drafted():
    # row 2 stands behind the window: there any token may come
    roots = choose_roots([5, 6], [[5, 1], [7, 6, 2], [5, 6]], [1, 2, 2])
    assert roots == (Root(0, 1), Root(1, 7), Root(1, 2), Root(2, 5), Root(2, 6))


def test_what_another_source_claimed_uses_no_budget():
    assert choose_roots([5], [[1, 2, 3]], [2], known={Root(0, 1)}) == (Root(0, 2), Root(0, 3))
    assert choose_roots([5], [[1, 2, 3]], [2], known={Root(1, 1)}) == (Root(0, 1), Root(0, 2))


def test_a_root_is_the_outcome_it_prepares_for():
    assert Root(1, 7) == Verdict(1, 7)[:2]


@given(st.lists(st.integers(0, 9), max_size=4), st.lists(TOKENS, max_size=5), st.lists(st.integers(0, 4), max_size=5))
def test_budgets_are_filled_with_the_best_that_may_come(drafted, candidates, budget):
    roots = choose_roots(drafted, candidates, budget)
    for row, (tokens, most) in enumerate(zip(candidates, budget, strict=False)):
        chosen = [root.token for root in roots if root.row == row]
        eligible = [token for token in tokens if row >= len(drafted) or token != drafted[row]]
        assert chosen == eligible[:most]
    assert len(set(roots)) == len(roots)
