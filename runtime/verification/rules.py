"""Which drafted tokens stand: how tokens are chosen, and the rules greedy, match and ratio for chains.

A rule sees the target's logits of a window's rows (row r decides the token behind r drafted ones) and the draws
of their positions; it holds no state and draws nothing itself. Probabilities are computed row by row, so that
rows behind the first refusal cost nothing. Rules for trees live in `runtime.verification.tree_rules`.
Shapes: T = len(window) + 1 rows, V vocabulary.

Rules and their proofs: Leviathan 2211.17192 and Chen 2302.01318 (ratio); match accepts while the target's own
sample agrees, so its text is that of plain sampling, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from decoding.messages import Candidates, Verdict, Window
from decoding.method_traits import Verification
from runtime.verification import tree_rules as trees
from runtime.verification.distributions import probabilities, residual, sample
from runtime.verification.draws import uniform


class Sampling(NamedTuple):
    """How tokens are chosen. Temperature 0 is greedy under every rule."""

    rule: Verification = "greedy"
    temperature: float = 0.0
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the target takes its argmax."""
        return self.temperature == 0.0 or self.rule == "greedy"

    @property
    def drafts_are_sampled(self) -> bool:
        """Whether the draft samples its tokens too: only the ratio rule makes use of it."""
        return self.rule == "ratio" and not self.is_greedy


GREEDY = Sampling()


def decide(logits_TV: Tensor, window: Window, sampling: Sampling, position: int) -> Verdict:
    """Apply the rule asked for, with the draws of the rows' text positions.

    Args:
        logits_TV: the target's logits, one row more than the window has tokens.
        window: what was drafted; its `distributions` are needed by the ratio rule.
        sampling: rule, temperature and seed.
        position: place in the text of the token that row 0 decides.
    """
    if window.parents or sampling.rule in ("one-hot", "typical"):
        return _decide_tree(logits_TV, window, sampling, position)
    if sampling.is_greedy:
        return verify_greedy(logits_TV, window.tokens)
    places = range(position, position + len(logits_TV))
    own = [uniform(sampling.seed, "target", place) for place in places]
    if sampling.rule == "match":
        return verify_match(logits_TV, window.tokens, sampling.temperature, own)
    accept = [uniform(sampling.seed, "accept", place) for place in places]
    return verify_ratio(logits_TV, window, sampling.temperature, own, accept)


def _decide_tree(logits_TV: Tensor, window: Window, sampling: Sampling, position: int) -> Verdict:
    seed, temperature = sampling.seed, sampling.temperature

    def own(depth: int) -> float:
        return uniform(seed, "target", position + depth)

    def accept(depth: int, sibling: int) -> float:
        return uniform(seed, "accept", position + depth, sibling)

    if sampling.is_greedy:
        return trees.verify_greedy(logits_TV, window)
    if sampling.rule == "match":
        return trees.verify_match(logits_TV, window, temperature, own)
    if sampling.rule == "one-hot":
        return trees.verify_one_hot(logits_TV, window, temperature, own, accept)
    assert sampling.rule == "typical", f"rule {sampling.rule} is not for trees"
    return trees.verify_typical(logits_TV, window, temperature, own)


def verify_greedy(logits_TV: Tensor, drafted: Sequence[int]) -> Verdict:
    """Accept while the drafted token is the target's argmax; of equal logits the lowest id is it."""
    # argmax of bfloat16 is several times slower than converting first
    best = logits_TV.float().argmax(dim=-1).tolist()
    num_accepted = 0
    while num_accepted < len(drafted) and drafted[num_accepted] == best[num_accepted]:
        num_accepted += 1
    return Verdict(num_accepted, best[num_accepted])


def verify_match(logits_TV: Tensor, drafted: Sequence[int], temperature: float, draws: Sequence[float]) -> Verdict:
    """Sample the target's token of every row from the row's own draw; accept while the drafted one equals it."""
    for row, token in enumerate(drafted):
        sampled = sample(probabilities(logits_TV[row], temperature), draws[row])
        if sampled != token:
            return Verdict(row, sampled)
    last = len(drafted)
    return Verdict(last, sample(probabilities(logits_TV[last], temperature), draws[last]))


def verify_ratio(
    logits_TV: Tensor,
    window: Window,
    temperature: float,
    draws: Sequence[float],
    accept_draws: Sequence[float],
) -> Verdict:
    """Accept a drafted token with the ratio of its two probabilities; on refusal sample what the draft missed.

    Exact if every token of the window was drawn from its entry in `window.distributions`.
    """
    for row, (token, drafted_from) in enumerate(zip(window.tokens, window.distributions, strict=True)):
        target = probabilities(logits_TV[row], temperature)
        if accept_draws[row] * _probability(drafted_from, token) >= target[token]:
            return Verdict(row, sample(residual(target, drafted_from), draws[row]))
    last = len(window.tokens)
    return Verdict(last, sample(probabilities(logits_TV[last], temperature), draws[last]))


def _probability(candidates: Candidates, token: int) -> float:
    return candidates.probabilities[candidates.tokens.index(token)]
