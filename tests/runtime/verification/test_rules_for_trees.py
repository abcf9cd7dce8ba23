"""Rules leave the target's distribution untouched: integrated exactly over all draws, on five tokens.

A rule is piecewise constant in every draw it asks for, and the ends of its pieces follow from the distributions
alone. So a run that asks for an unknown draw is repeated once for each piece, weighted with the piece's length.
"""

from collections import defaultdict
from functools import cache, partial
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from decoding.messages import Candidates, Window
from runtime.verification.rules import (
    probabilities,
    residual,
    truncated,
    verify_match,
    verify_one_hot,
    verify_ratio,
    verify_typical,
)

VOCAB = 5
TEMPERATURE = 0.7


def random_tree(rng, num_nodes, max_depth):
    """A window of at most so many nodes whose siblings differ, and the tokens from the root to each node."""
    texts, parents = [], []
    for _ in range(num_nodes):
        parent = int(rng.integers(-1, len(texts)))
        before = texts[parent] if parent >= 0 else ()
        text = (*before, int(rng.integers(VOCAB)))
        if len(text) <= max_depth and text not in texts:
            texts.append(text)
            parents.append(parent)
    return Window(tuple(text[-1] for text in texts), parents=tuple(parents)), texts


class Target:
    """A target whose distribution depends on all tokens before."""

    def __init__(self, seed):
        self.seed = seed
        self.logits = cache(self._logits)
        self.p = cache(lambda *text: probabilities(self.logits(*text), TEMPERATURE))

    def _logits(self, *text):
        rng = np.random.default_rng((self.seed, *[token + 1 for token in text]))
        return torch.tensor(rng.normal(0.0, 1.5, VOCAB))

    def rows(self, texts):
        return torch.stack([self.logits(), *[self.logits(*text) for text in texts]])

    def texts(self, length):
        """Probability of every text of a length."""
        return {
            text: float(np.prod([self.p(*text[:place])[text[place]] for place in range(length)]))
            for text in product(range(VOCAB), repeat=length)
        }


class AskedError(Exception):
    """A rule wants a draw that is not fixed yet."""


def integrate(rule, pieces):
    """(probability, verdict) of every piece of the space of draws that the rule asks for.

    `rule(draw)` decides with `draw(*key)`; `pieces(*key)` names the middle and the length of each piece of a draw.
    """
    stack = [(1.0, {})]
    while stack:
        chance, known = stack.pop()

        def draw(*key, known=known):
            if key not in known:
                raise AskedError(key)
            return known[key]

        try:
            yield chance, rule(draw)
        except AskedError as asked:
            (key,) = asked.args
            stack += [(chance * length, known | {key: middle}) for middle, length in pieces(*key)]


def decided_texts(target, window, verdicts, length):
    """Probability of every text of a length when a round is decided so and the target goes on alone."""
    known = defaultdict(float)
    for chance, verdict in verdicts:
        known[(*window.accepted(verdict), verdict.next_token)] += chance
    texts = dict.fromkeys(product(range(VOCAB), repeat=length), 0.0)
    for text in texts:
        for start in range(1, length + 1):
            rest = [target.p(*text[:place])[text[place]] for place in range(start, length)]
            texts[text] += known.get(text[:start], 0.0) * float(np.prod(rest))
    return texts


def total_variation(left, right):
    return sum(abs(left[text] - right[text]) for text in left) / 2


def cut(ends):
    """Middle and length of what lies between the ends and 0 and 1, which no draw is."""
    ends = np.unique(np.clip([0.0, 1.0, *ends], 0.0, 1.0))
    return [(middle, high - low) for low, high in pairwise(ends) if (middle := (low + high) / 2) < 1.0]


def contexts(texts, depth):
    """Token paths to the nodes of a depth, and what is drafted after each."""
    for text in {(), *texts}:
        if len(text) == depth:
            yield text, [other[-1] for other in texts if other[:-1] == text]


def shares(weights):
    return np.cumsum(weights / weights.sum())


def one_hot_pieces(target, texts):
    def pieces(kind, depth, rank=None):
        ends = []
        for text, drafted in contexts(texts, depth):
            left = target.p(*text).copy()
            for token in drafted[:rank]:
                left[token] = 0.0
            if kind == "own":
                ends += list(shares(left)) if left.any() else []
            elif rank < len(drafted):
                ends.append(left[drafted[rank]] / left.sum())
        return cut(ends)

    return pieces


def own_pieces(target, texts):
    def pieces(_kind, depth):
        return cut([end for text, _ in contexts(texts, depth) for end in shares(target.p(*text))])

    return pieces


def rule_of(verify, target, window, texts, kinds=("own",)):
    """A rule that takes these kinds of draws, on the target's rows after each of `texts`."""
    rows = target.rows(texts)
    return lambda draw: verify(rows, window, TEMPERATURE, *(partial(draw, kind) for kind in kinds))


BOTH = ("own", "accept")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("verify", "kinds", "pieces"), [(verify_one_hot, BOTH, one_hot_pieces), (verify_match, ("own",), own_pieces)]
)
def test_one_hot_and_match_reproduce_the_target_exactly(verify, kinds, pieces, seed):
    rng, target = np.random.default_rng(seed), Target(seed)
    window, texts = random_tree(rng, int(rng.integers(1, 12)), 2)
    verdicts = integrate(rule_of(verify, target, window, texts, kinds), pieces(target, texts))
    assert total_variation(decided_texts(target, window, verdicts, 3), target.texts(3)) < 1e-12


def test_one_hot_is_exact_where_a_tree_holds_every_token():
    target, texts = Target(3), [(3,), (0,), (4,), (1,), (2,)]
    window = Window((3, 0, 4, 1, 2), parents=(-1,) * 5)
    rule = rule_of(verify_one_hot, target, window, texts, BOTH)
    verdicts = list(integrate(rule, one_hot_pieces(target, texts)))
    assert {verdict.num_accepted for _, verdict in verdicts} == {1}
    assert total_variation(decided_texts(target, window, verdicts, 2), target.texts(2)) < 1e-12


def speculative_texts(target, draft, named=None):
    """Probability of every text when a chain of two that `draft` samples is verified by the ratio rule.

    `named` is what the window says that its tokens were drawn from; None for the truth.
    """
    texts = defaultdict(float)
    for drafted in product(range(VOCAB), repeat=2):
        own = draft(), draft(drafted[0])
        chance = float(np.prod([share_of(q, token) for q, token in zip(own, drafted, strict=True)]))
        if chance:
            window = Window(drafted, (), named or own)
            rule = rule_of(verify_ratio, target, window, [drafted[:1], drafted], BOTH)
            verdicts = integrate(rule, ratio_pieces(target, window))
            for text, share in decided_texts(target, window, verdicts, 3).items():
                texts[text] += chance * share
    return texts


def share_of(distribution, token):
    return dict(zip(distribution.tokens, distribution.probabilities, strict=True)).get(token, 0.0)


def ratio_pieces(target, window):
    def pieces(kind, depth):
        p = target.p(*window.tokens[:depth])
        if depth == len(window.tokens):
            return cut(shares(p))
        q, token = window.distributions[depth], window.tokens[depth]
        return cut([p[token] / share_of(q, token)] if kind == "accept" else shares(residual(p.copy(), q)))

    return pieces


@pytest.mark.parametrize(("seed", "width"), [(0, 2), (1, 4), (2, VOCAB)])
def test_ratio_reproduces_the_target_exactly(seed, width):
    target, model = Target(seed), Target(seed + 1)
    found = speculative_texts(target, lambda *text: truncated(model.logits(*text), TEMPERATURE, width))
    assert total_variation(found, target.texts(3)) < 1e-12


def test_the_integral_notices_a_draft_that_names_the_wrong_distribution():
    target, model = Target(0), Target(1)
    uniform = Candidates(tuple(range(VOCAB)), (1 / VOCAB,) * VOCAB)
    found = speculative_texts(
        target, lambda *text: truncated(model.logits(*text), TEMPERATURE, VOCAB), named=(uniform, uniform)
    )
    assert total_variation(found, target.texts(3)) > 0.01


def test_typical_does_not_reproduce_the_target():
    """It is offered as lossy; this shows that it is, and that the integral would notice."""
    far = []
    for seed in range(6):
        target = Target(seed)
        window, texts = random_tree(np.random.default_rng(seed), 6, 2)
        verdicts = list(integrate(rule_of(verify_typical, target, window, texts), own_pieces(target, texts)))
        assert sum(chance for chance, _ in verdicts) == pytest.approx(1.0)
        far.append(total_variation(decided_texts(target, window, verdicts, 3), target.texts(3)))
    assert min(far) > 0.01


def test_the_integral_notices_one_draw_for_all_siblings():
    target, texts = Target(1), [(3,), (0,), (4,)]
    window = Window((3, 0, 4), parents=(-1,) * 3)
    rows = target.rows(texts)

    def rule(draw):
        return verify_one_hot(rows, window, TEMPERATURE, partial(draw, "own"), lambda depth, _: draw("accept", depth))

    pieces = one_hot_pieces(target, texts)

    def shared(kind, depth):
        if kind == "own":
            return pieces(kind, depth)
        left, ends = target.p().copy(), []
        for token in window.tokens:
            ends.append(left[token] / left.sum())
            left[token] = 0.0
        return cut(ends)

    found = decided_texts(target, window, integrate(rule, shared), 2)
    assert total_variation(found, target.texts(2)) > 0.01
