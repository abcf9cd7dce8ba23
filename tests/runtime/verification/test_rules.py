"""The ratio rule, for chains alone, leaves the target's distribution untouched; others: `test_rules_for_trees`.

A rule is piecewise constant in its draws. Its pieces end at numbers that follow from the distributions alone, so
one evaluation per piece, weighted with the piece's length, is the exact integral: here over five tokens.
"""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.messages import NO_WINDOW, Candidates, Verdict, Window
from runtime.verification.replayed_text import ReplayedText
from runtime.verification.rules import (
    GREEDY,
    Sampling,
    decide,
    draw_from,
    probabilities,
    residual,
    sample,
    truncated,
    uniform,
    verify_ratio,
)

VOCAB = 5
TEMPERATURE = 0.7


def random_logits(seed, *shape):
    return torch.tensor(np.random.default_rng(seed).normal(0.0, 1.5, shape))


def pieces(*weights):
    """Midpoints and lengths of the intervals in which sampling from any of the `weights` is constant."""
    ends = np.unique(np.concatenate([[0.0, 1.0], *[np.cumsum(w / w.sum())[:-1] for w in weights]]))
    return [((low + high) / 2, high - low) for low, high in pairwise(ends) if high > low]


class Pair:
    """A target and a draft that depend on the tokens before: distributions of two places and the bonus."""

    def __init__(self, seed, *, draft_width=VOCAB):
        self.target = random_logits(seed, VOCAB + 1, VOCAB + 1, VOCAB)
        self.draft = random_logits(seed + 1, VOCAB + 1, VOCAB)
        self.width = draft_width

    def logits(self, tokens):
        first, second = tokens
        return torch.stack([self.target[0, 0], self.target[first + 1, 0], self.target[first + 1, second + 1]])

    def p(self, *before):
        first, second = (*[token + 1 for token in before], 0, 0)[:2]
        return probabilities(self.target[first, second], TEMPERATURE)

    def q(self, *before):
        return truncated(self.draft[before[0] + 1 if before else 0], TEMPERATURE, self.width)


def target_texts(pair):
    """Probability of every three-token text under the target alone."""
    texts = {}
    for a, b, c in product(range(VOCAB), repeat=3):
        texts[a, b, c] = pair.p()[a] * pair.p(a)[b] * pair.p(a, b)[c]
    return texts


def speculative_texts(pair, verdicts):
    """Probability of every text when a window of two is verified by `verdicts(tokens, distributions)`.

    `verdicts` yields (probability, verdict); what the round did not decide follows the target.
    """
    texts = dict.fromkeys(product(range(VOCAB), repeat=3), 0.0)
    for first, second in product(range(VOCAB), repeat=2):
        one, two = pair.q(), pair.q(first)
        if first not in one.tokens or second not in two.tokens:
            continue
        drafted = one.probabilities[one.tokens.index(first)] * two.probabilities[two.tokens.index(second)]
        for chance, verdict in verdicts((first, second), (one, two)):
            known = (*(first, second)[: verdict.num_accepted], verdict.next_token)
            for text in texts:
                if text[: len(known)] == known:
                    rest = [pair.p(*text[:place])[text[place]] for place in range(len(known), 3)]
                    texts[text] += drafted * chance * float(np.prod(rest))
    return texts


def total_variation(left, right):
    return sum(abs(left[text] - right[text]) for text in left) / 2


def ratio_verdicts(pair, tokens, distributions):
    """Every verdict of the rule and its probability."""
    logits = pair.logits(tokens)
    rows = [pair.p(), pair.p(tokens[0]), pair.p(*tokens)]
    ratios = [
        min(1.0, p[token] / q.probabilities[q.tokens.index(token)])
        for p, q, token in zip(rows, distributions, tokens, strict=False)
    ]
    accept = [[(r / 2, r), ((1 + r) / 2, 1 - r)] if r < 1 else [(0.5, 1.0)] for r in ratios]
    own = [pieces(residual(rows[0], distributions[0])), pieces(residual(rows[1], distributions[1])), pieces(rows[2])]
    for cells in product(*accept, *own):
        draws = [middle for middle, _ in cells]
        verdict = verify_ratio(
            logits, Window(tokens, (), distributions), TEMPERATURE, draws[2:].__getitem__, draws[:2].__getitem__
        )
        yield float(np.prod([length for _, length in cells])), verdict


@pytest.mark.parametrize(("seed", "width"), [(0, 2), (1, 4), (2, VOCAB)])
def test_ratio_reproduces_the_target_exactly(seed, width):
    pair = Pair(seed, draft_width=width)

    def verdicts(tokens, distributions):
        return ratio_verdicts(pair, tokens, distributions)

    assert total_variation(speculative_texts(pair, verdicts), target_texts(pair)) < 1e-12


def test_the_integral_notices_a_draft_that_names_the_wrong_distribution():
    pair = Pair(0)
    uniform = Candidates(tuple(range(VOCAB)), (1 / VOCAB,) * VOCAB)

    def verdicts(tokens, distributions):
        return ratio_verdicts(pair, tokens, (uniform, uniform))

    assert total_variation(speculative_texts(pair, verdicts), target_texts(pair)) > 0.01


def test_greedy_takes_the_lowest_id_of_equal_logits():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]], dtype=torch.bfloat16)
    assert decide(logits, NO_WINDOW, GREEDY, 0).next_token == 1


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


def test_temperature_zero_is_greedy():
    logits = random_logits(4, 3, VOCAB)
    best = logits.argmax(-1).tolist()
    window, sampling = Window(tuple(best[:2])), Sampling("ratio", 0.0, seed=1)
    assert decide(logits, window, sampling, 9) == decide(logits, window, GREEDY, 9)
    assert decide(logits, window, sampling, 9).outcome == (2, best[2])


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
