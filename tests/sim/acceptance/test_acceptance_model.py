from __future__ import annotations

import numpy as np
import pytest

from decoding.errors import ConfigError
from decoding.record import RecordedTree
from sim.acceptance.acceptance_model import FROM_DRAFT, FROM_EXIT, MISS, DrawnAcceptance
from tests.sim.worlds.schedules import mirror, speculative, tree


def accepted(acceptance: DrawnAcceptance, num_tokens: int) -> list[list[int]]:
    """Accepted tokens by prompt and round, for as many rounds as there are."""
    found = []
    for answers in acceptance.answers(speculative(num_tokens), None):
        answer_of = [answers.rounds[index][1].num_accepted for index in range(answers.num_tokens)]
        found.append(answer_of)
    return found


def test_all_schedules_meet_the_same_luck() -> None:
    acceptance = DrawnAcceptance(0.7, hit_rate=0.5, num_tokens=50, num_prompts=3)
    short, long = np.array(accepted(acceptance, 2)), np.array(accepted(acceptance, 6))
    assert (np.minimum(long, 2) == short).all()
    assert len({tuple(row) for row in long.tolist()}) == 3


def test_longer_runs_begin_with_the_same_luck() -> None:
    short = accepted(DrawnAcceptance(0.7, hit_rate=0.5, num_tokens=20), 4)
    long = accepted(DrawnAcceptance(0.7, hit_rate=0.5, num_tokens=50), 4)
    assert long[0][:20] == short[0]


def test_a_cut_is_at_least_one_token_and_none_is_no_cut() -> None:
    acceptance = DrawnAcceptance(0.7, hit_rate=0.5, num_tokens=50)
    lengths = [acceptance.answers(speculative(2), cut)[0].num_tokens for cut in (None, 1, 49, 60)]
    assert lengths == [50, 1, 49, 50]
    for cut in (0, -1):
        with pytest.raises(ConfigError, match=f"max_new_tokens is {cut}, it must be at least 1"):
            acceptance.contexts(cut)


def test_a_higher_rate_accepts_at_least_as_much_in_every_round() -> None:
    low, high = (accepted(DrawnAcceptance(rate, hit_rate=0, num_tokens=200), 5)[0] for rate in (0.4, 0.6))
    assert all(less <= more for less, more in zip(low, high, strict=True))
    assert low != high


@pytest.mark.parametrize(("root_source", "source"), [("draft", FROM_DRAFT), ("exit", FROM_EXIT), ("hybrid", FROM_EXIT)])
def test_hits_are_counted_for_the_source_that_starts_last(root_source: str, source: int) -> None:
    acceptance = DrawnAcceptance(0.5, hit_rate=0.5, num_tokens=100)
    [answers] = acceptance.answers(mirror(root_source), None)
    assert {answers.rounds[index][2] for index in range(100)} == {MISS, source}


def test_contexts_are_those_in_which_a_round_may_start() -> None:
    acceptance = DrawnAcceptance(0.5, hit_rate=0, num_tokens=10, prompt_length=7)
    assert acceptance.contexts(None) == range(6, 16)
    assert acceptance.contexts(4) == range(6, 10)


def test_a_walk_ends_where_the_sequence_does() -> None:
    walk = DrawnAcceptance((1, 1), hit_rate=0, num_tokens=7).walk(speculative(), None)
    assert walk.position.tolist() == [0, 3, 6]
    assert walk.num_committed.tolist() == [3, 3, 1]
    assert walk.is_first.tolist() == [True, False, False]
    assert walk.is_last.tolist() == [False, False, True]


def test_drawn_trees_have_a_rate_for_every_level_whatever_their_size() -> None:
    acceptance = DrawnAcceptance((0.8, 0.5, 0.0), hit_rate=0, num_tokens=50)
    eagle = RecordedTree(method="eagle3", drafter="head", depth=3, top_k=4)
    for size, num_drafted in ((8, 8), (60, 36)):
        [answers] = acceptance.answers(tree(eagle, size), None)
        window, verdict, _ = answers.rounds[0]
        assert len(window.tokens) == num_drafted
        assert len(verdict.path) == verdict.num_accepted
        counts = [answers.rounds[index][1].num_accepted for index in range(50)]
        assert counts == accepted(acceptance, 3)[0]


def test_streams_accept_nothing_in_the_pass_that_has_no_tree_yet() -> None:
    streams = RecordedTree(method="speculative_streaming", drafter="streams", depth=2)
    [answers] = DrawnAcceptance((1, 1), hit_rate=0, num_tokens=9).answers(tree(streams, 4), None)
    first, second = answers.rounds[0], answers.rounds[1]
    assert (first[0].tokens, first[1].num_accepted, first[1].window) == ((), 0, second[0])
    assert (len(second[0].tokens), second[1].num_accepted) == (4, 2)


def test_trees_of_unknown_levels_are_not_drawn() -> None:
    hydra = RecordedTree(method="hydra", drafter="head", depth=2)
    with pytest.raises(ConfigError, match="the shape of hydra's trees is known to acceptance records only"):
        DrawnAcceptance(0.5, hit_rate=0, num_tokens=9).walk(tree(hydra, 4), None)


@pytest.mark.parametrize(
    ("rates", "fields", "message"),
    [
        ((0.5, 1.1), {}, r"lie in 0\.\.1, found 1.1"),
        ((0.5,), {"hit_rate": -0.1}, r"lie in 0\.\.1, found -0.1"),
        ((0.5,), {"num_tokens": 0}, "need at least one token"),
    ],
)
def test_impossible_rates_are_refused(rates: tuple[float, ...], fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DrawnAcceptance(rates, **{"hit_rate": 0.5, "num_tokens": 9} | fields)


def test_a_window_longer_than_the_known_rates_is_refused() -> None:
    acceptance = DrawnAcceptance((0.5, 0.5), hit_rate=0, num_tokens=9)
    with pytest.raises(ConfigError, match="num_speculative_tokens is 3, but acceptance is known for 2 drafted places"):
        acceptance.walk(speculative(3), None)
