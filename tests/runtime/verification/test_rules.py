"""Draws, the paths that rules take with them, and replays; that rules are exact: `test_rules_for_trees`."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import LaneError
from decoding.messages import Candidates, Verdict, Window
from runtime.verification.replayed_text import ReplayedText
from runtime.verification.rules import (
    GREEDY,
    Sampling,
    decide,
    draw_from,
    probabilities,
    relative_probabilities,
    residual,
    sample,
    truncated,
    uniform,
    verify_match,
    verify_one_hot,
    verify_ratio,
    verify_typical,
)
from tests.runtime.verification.test_rules_for_trees import random_tree

VOCAB = 5
TEMPERATURE = 0.7


def random_logits(seed, *shape):
    return torch.tensor(np.random.default_rng(seed).normal(0.0, 1.5, shape))


@given(seed=st.integers(0, 10_000), draw=st.floats(0.0, 1.0, exclude_max=True))
def test_ratio_accepts_whatever_was_drawn_from_the_targets_own_distribution(seed, draw):
    logits = random_logits(seed, 2, VOCAB)
    own = truncated(logits[0], TEMPERATURE, VOCAB)
    window = Window((draw_from(own, draw),), (), (own,))
    assert verify_ratio(logits, window, TEMPERATURE, lambda _: 0.5, [0.999_999].__getitem__).num_accepted == 1


@given(seed=st.integers(0, 10_000), draw=st.floats(0.0, 1.0, exclude_max=True))
def test_a_token_without_weight_is_never_sampled(seed, draw):
    rng = np.random.default_rng(seed)
    weights = rng.random(8) * (rng.random(8) < 0.5)
    weights[rng.integers(8)] = 0.25
    assert weights[sample(weights, draw)] > 0


def test_a_truncated_draft_sums_to_one_best_first():
    candidates = truncated(random_logits(1, VOCAB), TEMPERATURE, 3)
    assert len(candidates.tokens) == 3
    assert sum(candidates.probabilities) == pytest.approx(1.0, abs=1e-15)
    assert list(candidates.probabilities) == sorted(candidates.probabilities, reverse=True)


def memory_of(function, *arguments):
    """Most bytes that a call holds at once, and what it returns."""
    tracemalloc.start()
    found = function(*arguments)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, found


def test_probabilities_are_the_softmax_in_one_array_and_leave_logits_as_they_were():
    """Memory for each step of a whole vocabulary would take longer than the steps."""
    logits = np.random.default_rng(0).normal(0.0, 3.0, 50_000)
    before, scores = logits.copy(), logits / TEMPERATURE
    weights = np.exp(scores - scores.max())
    peak, found = memory_of(probabilities, logits, TEMPERATURE)
    assert peak < 1.5 * found.nbytes
    np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-13)
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_allclose(relative_probabilities(logits, TEMPERATURE), weights, rtol=1e-13)


def test_to_draw_from_a_vocabulary_takes_no_second_array_of_it():
    """Weights are summed by blocks, and a draft is subtracted in place: memory would take as long as the exponent."""
    target = np.random.default_rng(0).random(50_000)
    drafted = Candidates((3, 7), (0.75, 0.25))
    for one, *arguments in ((sample, target, 0.5), (residual, target, drafted)):
        peak, _ = memory_of(one, *arguments)
        assert peak < 0.1 * target.nbytes, one


def test_a_draft_is_subtracted_from_weights_of_any_sum():
    shares = np.array([0.5, 0.25, 0.125, 0.125])
    drafted = Candidates((1, 0), (0.75, 0.25))
    for total in (1.0, 8.0):
        np.testing.assert_array_equal(residual(total * shares, drafted), total * np.array([0.25, 0.0, 0.125, 0.125]))
    same = Candidates((0, 1, 2, 3), tuple(shares))
    np.testing.assert_array_equal(residual(shares.copy(), same), shares)


ALMOST_ONE = 1.0 - 2.0**-53
"""The largest draw."""


@pytest.mark.parametrize("size", [1, 511, 512, 513, 32_003, 49_152])
@pytest.mark.parametrize("likely", [1.0, 0.001])
def test_a_token_is_drawn_where_all_weights_before_it_pass_the_draw(size, likely):
    """With few likely tokens there are blocks without any, the last one often among them."""
    rng = np.random.default_rng(size)
    weights = np.exp(rng.normal(0.0, 3.0, size)) * (rng.random(size) < likely)
    weights[rng.integers(size)] = 1.0
    cumulated = np.cumsum(weights)
    for draw in (0.0, ALMOST_ONE, *rng.random(200).tolist()):
        token = sample(weights, draw)
        assert weights[token] > 0
        before, after = cumulated[token] - weights[token], cumulated[token]
        assert before <= draw * cumulated[-1] * (1 + 1e-12)
        assert draw * cumulated[-1] <= after * (1 + 1e-12)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_an_error_and_no_token(wrong):
    with pytest.raises(LaneError, match=rf"the logits of a model hold {wrong}: nothing can be drawn"):
        sample(probabilities(np.array([0.0, wrong, 1.0], dtype=np.float32), TEMPERATURE), 0.5)


def test_no_number_is_the_best_of_none():
    with pytest.raises(LaneError, match="the logits of a model hold nan: none is the best"):
        decide(np.array([[0.0, np.nan, 1.0]], dtype=np.float32), Window(tokens=()), GREEDY, 0)


def test_a_token_that_a_replay_knows_needs_no_best():
    replay = ReplayedText(prompt_length=3, text=(4,), drafted=(4,), in_draft=(True,), in_exit=(True,))
    logits, sampling = np.full((2, VOCAB), np.nan, dtype=np.float32), Sampling(replay=replay)
    assert decide(logits, Window(tokens=()), sampling, 3)[:2] == (0, 4)
    with pytest.raises(LaneError, match="none is the best"):
        decide(logits, Window(tokens=(4,)), sampling, 3)


@pytest.mark.parametrize("weights", [[0.0, 5e-324, 0.0], [5e-324] * 3, [1.0, 5e-324]])
def test_next_to_nothing_is_drawn_from_within_the_vocabulary(weights):
    weights = np.array(weights)
    assert weights[sample(weights, 1 - 2.0**-53)] > 0


def test_temperature_zero_is_greedy():
    logits = random_logits(4, 3, VOCAB)
    best = logits.argmax(-1).tolist()
    window, sampling = Window(tuple(best[:2])), Sampling("ratio", 0.0, seed=1)
    assert decide(logits, window, sampling, 9) == decide(logits, window, GREEDY, 9)
    assert decide(logits, window, sampling, 9)[:2] == (2, best[2])


def test_seeds_streams_and_positions_have_draws_of_their_own():
    draws = {
        uniform(seed, stream, position)
        for seed in (0, 1, -1, 10**30)
        for stream in ("target", "accept", "draft")
        for position in range(50)
    }
    assert len(draws) == 4 * 3 * 50


def test_rivals_for_a_position_have_draws_of_their_own():
    draws = {uniform(7, "accept", *place) for place in [(1,), (11,), (1, 0), (1, 1), (11, 0), (1, 10), (1, 1, 0)]}
    assert len(draws) == 7


def test_draws_fill_the_unit_interval_evenly():
    draws = np.array([uniform(3, "accept", position) for position in range(20_000)])
    counts, _ = np.histogram(draws, bins=50, range=(0.0, 1.0))
    chi_square = ((counts - 400) ** 2 / 400).sum()
    assert counts.sum() == 20_000
    assert chi_square < 85.4  # 99.9 % of chi-square with 49 degrees of freedom


def test_neighbouring_draws_are_not_correlated():
    draws = np.array([uniform(3, "target", position) for position in range(20_000)])
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.025


trees_and_logits = st.tuples(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4))


def paths_of(window):
    """The nodes from the root to each node, the empty path among them."""
    paths = [()]
    for node in range(len(window.tokens)):
        path = [node]
        while window.parents[path[0]] >= 0:
            path.insert(0, window.parents[path[0]])
        paths.append(tuple(path))
    return paths


def rows_along(path):
    """The row that decides each node of a path, and the one that decides what follows."""
    return [0, *[node + 1 for node in path]]


@settings(deadline=None)
@given(trees_and_logits)
def test_greedy_takes_the_longest_path_of_argmaxes(case):
    rng = np.random.default_rng(case)
    window, _ = random_tree(rng, *case[1:])
    logits = torch.tensor(rng.integers(0, 4, (len(window.tokens) + 1, VOCAB))).bfloat16()  # ties are frequent
    best = [int(np.flatnonzero(row == row.max())[0]) for row in logits.float().numpy()]
    right = [
        path
        for path in paths_of(window)
        if all(best[row] == window.tokens[node] for row, node in zip(rows_along(path), path, strict=False))
    ]
    path = max(right, key=len)
    expected = Verdict(len(path), best[rows_along(path)[-1]], path=path)
    assert decide(logits, window, Sampling("greedy"), 9) == expected
    for rule in ("match", "one-hot", "typical"):
        assert decide(logits, window, Sampling(rule, 0.0, seed=3), 9) == expected


@settings(deadline=None)
@given(trees_and_logits)
def test_typical_takes_the_deepest_path_of_plausible_tokens(case):
    rng = np.random.default_rng(case)
    window, _ = random_tree(rng, *case[1:])
    logits = torch.tensor(rng.normal(0.0, 2.0, (len(window.tokens) + 1, VOCAB)))

    def is_plausible(row, token):
        p = torch.softmax(logits[row] / 0.9, -1)
        entropy = torch.distributions.Categorical(p).entropy()
        return bool(p[token] > torch.minimum(torch.tensor(0.09), 0.3 * torch.exp(-entropy)))

    good = [
        path
        for path in paths_of(window)
        if all(is_plausible(row, window.tokens[node]) for row, node in zip(rows_along(path), path, strict=False))
    ]
    verdict = decide(logits, window, Sampling("typical", 0.9, seed=case[0]), 9)
    assert verdict.path == max(good, key=len)
    after = logits[rows_along(verdict.path)[-1]][None]
    plain = decide(after, Window(()), Sampling("match", 0.9, seed=case[0]), 9 + verdict.num_accepted)
    assert verdict.next_token == plain.next_token


@settings(deadline=None)
@given(trees_and_logits)
def test_match_commits_what_plain_sampling_commits(case):
    rng = np.random.default_rng(case)
    window, _ = random_tree(rng, *case[1:])
    logits = torch.tensor(rng.normal(0.0, 1.0, (len(window.tokens) + 1, VOCAB)))
    sampling = Sampling("match", 0.9, case[0])
    verdict = decide(logits, window, sampling, position=5)
    rows = rows_along(verdict.path)
    plain = [decide(logits[row][None], Window(()), sampling, 5 + place).next_token for place, row in enumerate(rows)]
    assert [*window.accepted(verdict), verdict.next_token] == plain


@given(seed=st.integers(0, 10_000), drafted=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
def test_a_chain_written_as_a_tree_is_decided_as_a_chain(seed, drafted):
    logits = torch.tensor(np.random.default_rng(seed).normal(0.0, 1.0, (len(drafted) + 1, VOCAB)))
    chain = Window(tuple(drafted))
    tree = Window(tuple(drafted), parents=tuple(range(-1, len(drafted) - 1)))
    draws = np.random.default_rng(seed + 1).random((2, len(drafted) + 1)).tolist()

    def own(depth):
        return draws[0][depth]

    def accept(depth, _rank):
        return draws[1][depth]

    for rule in (
        partial(decide, sampling=GREEDY, position=0),
        partial(verify_match, temperature=TEMPERATURE, own=own),
        partial(verify_one_hot, temperature=TEMPERATURE, own=own, accept=accept),
        partial(verify_typical, temperature=TEMPERATURE, own=own),
    ):
        found = rule(logits, chain)
        assert rule(logits, tree) == found._replace(path=tuple(range(found.num_accepted)))


@pytest.mark.parametrize("rule", ["one-hot", "typical"])
def test_without_a_window_every_rule_samples_as_plain_decoding(rule):
    logits = random_logits(5, 1, VOCAB)
    for position in range(20):
        found = decide(logits, Window(()), Sampling(rule, 0.8, seed=2), position)
        assert found == decide(logits, Window(()), Sampling("match", 0.8, seed=2), position)


WORDS = 50


@st.composite
def replays(draw):
    count = draw(st.integers(1, 6))
    words = st.tuples(*[st.integers(0, WORDS - 1)] * count)
    flags = st.tuples(*[st.booleans()] * count)
    return ReplayedText(
        prompt_length=draw(st.integers(1, 4)),
        text=draw(words),
        drafted=draw(words),
        in_draft=draw(flags),
        in_exit=draw(flags),
    )


own_ids = st.lists(st.integers(0, WORDS - 1), unique=True, min_size=2, max_size=6)


@given(replay=replays(), own=own_ids)
def test_candidates_hold_the_word_where_it_is_offered_and_nowhere_else(replay, own):
    for place, word in enumerate(replay.text):
        position = replay.prompt_length + place
        for_draft, for_exit = replay.draft_alternatives(position, own), replay.exit_candidates(position, own)
        for found in (for_draft, for_exit):
            assert len(set(found)) == len(found) == len(own)
        assert (word in for_exit) == replay.in_exit[place]
        assert (word in for_draft) == (replay.in_draft[place] or replay.drafted[place] == word)
        assert replay.drafted[place] in for_draft
        if replay.in_draft[place]:
            assert for_draft[0] == word, "within any budget, whether or not a drafted token is left out"
        kept = [token for token in own if token in for_exit and token != word]
        assert [token for token in for_exit if token in kept] == kept, "the others stay in their order"


@given(replay=replays(), own=own_ids)
def test_after_its_end_models_speak_for_themselves(replay, own):
    position = replay.prompt_length + len(replay.text)
    assert replay.target_token(position, own[0]) == replay.draft_token(position, own[0]) == own[0]
    assert replay.draft_alternatives(position, own) == replay.exit_candidates(position, own) == tuple(own)


def test_a_verdict_follows_from_what_the_target_is_made_to_say():
    replay = ReplayedText(
        prompt_length=3, text=(7, 8, 9), drafted=(7, 1, 9), in_draft=(False,) * 3, in_exit=(False,) * 3
    )
    sampling = Sampling(replay=replay)
    logits = torch.zeros(3, WORDS)
    logits[:, 5] = 1.0
    assert decide(logits, Window((7, 1)), sampling, 3) == Verdict(1, 8)
    assert decide(logits, Window((7, 8)), sampling, 3) == Verdict(2, 9)
    assert decide(logits, Window((9, 5)), sampling, 5) == Verdict(2, 5), "its own words after the end"
    tree = Window((1, 7, 8), parents=(-1, -1, 1))
    assert decide(torch.zeros(4, WORDS), tree, sampling, 3) == Verdict(2, 9, path=(1, 2))
