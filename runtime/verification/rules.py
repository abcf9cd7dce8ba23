"""The rules that accept drafted tokens: greedy, match, ratio, one-hot and typical.

Row 0 of the target's logits decides what follows the last committed token, row i + 1 what follows drafted token i. All
rules but typical (Medusa, 2401.10774, section 3.3) keep the target's distribution, provided that a tree and the order
of its siblings were fixed before the draws. The ratio rule (Leviathan 2211.17192, Chen 2302.01318) is only for chains.
Rules get random numbers as arguments. Shapes: T = len(window) + 1 rows, V vocabulary.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ConfigError, LaneError
from decoding.messages import Candidates, Verdict, Window
from decoding.method_traits import Verification
from runtime.arrays import Array, as_array, wide
from runtime.models.vocabulary import NO_NUMBER, ranked_ids
from runtime.verification.replayed_text import ReplayedText

Stream = Literal["target", "accept", "draft"]
"""What a random number is for: the target's token, accepting a drafted token, or the draft's token."""

_BITS = 53
"""Bits of precision of a float64."""
_BLOCK: Final = 512
"""Block of ids that sampling sums first: a cumulative sum over all ids would dominate its time."""

Probabilities = NDArray[np.float64]

LEAST_TEMPERATURE: Final = 1e-3
MOST_TEMPERATURE: Final = 100.0
"""Below the first, sampling is greedy up to rounding; above the second, texts are noise."""


def require_temperature(temperature: float, rule: Verification | None = None) -> None:
    """Raise `ConfigError` for a temperature out of bounds, or above 0 with the greedy rule."""
    if temperature and not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        msg = f"temperature is {temperature:g}: it must be 0, or {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}"
        raise ConfigError(msg)
    if temperature and rule == "greedy":
        raise ConfigError(f"temperature is {temperature}: it must be 0 with verification greedy")


def is_lossy(rule: Verification, temperature: float) -> bool:
    """Return whether texts may have another distribution than the target's."""
    return rule == "typical" and temperature > 0


def relative_probabilities(logits_V: Array, temperature: float) -> Probabilities:
    """Return the weights of a softmax [V], 1 for the likeliest id; raise `LaneError` if the best is infinite or NaN."""
    # in place: allocating an array for each step takes up to twice as long as everything else
    weights = as_array(logits_V).astype(np.float64)
    if not math.isfinite(most := weights.max()):
        raise LaneError(f"the logits of a model hold {most}: nothing can be drawn from them")
    weights -= most
    weights *= 1 / temperature
    np.exp(weights, out=weights)
    return weights


def probabilities(logits_V: Array, temperature: float) -> Probabilities:
    """Return the softmax of logits in float64 [V]; see `relative_probabilities`, which are enough to sample from."""
    weights = relative_probabilities(logits_V, temperature)
    weights /= weights.sum()
    return weights


def residual(target: Probabilities, drafted_from: Candidates) -> Probabilities:
    """Return max(target - draft, 0), with the draft's probabilities scaled to the sum of the target's weights.

    `target` is changed in place and returned: copying a whole vocabulary takes as long as everything else.
    """
    ids = list(drafted_from.tokens)
    before = target[ids]
    target[ids] = np.maximum(before - target.sum() * np.asarray(drafted_from.probabilities), 0.0)
    if not target.any():
        # both distributions are equal up to rounding, and so was the refusal: sample from the target's
        target[ids] = before
    return target


def sample(weights: Probabilities, draw: float) -> int:
    """Return the id at which the cumulative weights exceed `draw` times their sum, never one of weight zero."""
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).cumsum()
    wanted = min(draw * blocks[-1], np.nextafter(blocks[-1], 0.0))  # the product may round up to the sum
    block = int(blocks.searchsorted(wanted, side="right"))
    start = block * _BLOCK
    cumulated = weights[start : start + _BLOCK].cumsum()
    rest = wanted - blocks[block - 1] if block else wanted
    # the two sums of a block may differ by rounding, so the search is kept below the second one
    return start + int(cumulated.searchsorted(min(rest, np.nextafter(cumulated[-1], 0.0)), side="right"))


def truncated(logits_V: Array, temperature: float, count: int) -> Candidates:
    """Return the `count` likeliest ids and their renormalised probabilities, which a draft samples from and sends."""
    ids = ranked_ids(logits_V[None], min(count, len(logits_V)))[0]
    return Candidates(tuple(ids.tolist()), tuple(probabilities(logits_V[ids], temperature).tolist()))


def draw_from(candidates: Candidates, draw: float) -> int:
    """Return a candidate sampled by the random number `draw` in [0, 1)."""
    return candidates.tokens[sample(np.asarray(candidates.probabilities), draw)]


def seed_of(seed: int, prompt: Sequence[int]) -> int:
    """Return the seed of a prompt's random numbers, a hash of `seed` and its ids, so that prompts share none."""
    return int.from_bytes(blake2b(" ".join(map(str, (seed, *prompt))).encode(), digest_size=8).digest(), "little")


def uniform(seed: int, stream: Stream, *place: int) -> float:
    """Return a random number in [0, 1): a hash of seed, stream and place (text position, and rank of a sibling)."""
    digest = blake2b(" ".join(map(str, (seed, stream, *place))).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _BITS)) * 2.0**-_BITS


ROOT: Final = -1
"""The parent of a window's first tokens: the last committed token."""

TYPICAL_PROBABILITY: Final = 0.09
TYPICAL_ENTROPY_SHARE: Final = 0.3
"""Epsilon and alpha of typical acceptance, as Medusa's authors set them."""

Draw = Callable[[int], float]
"""From a depth, the number of drafted tokens before, to the random number in [0, 1) for the token there."""
SiblingDraw = Callable[[int, int], float]
"""From a depth and a rank among siblings to the random number in [0, 1) for that sibling."""
Choose = Callable[[int, int, Sequence[int]], int]
"""From a row, its depth and the tokens drafted to follow it to the token that does follow."""


class Sampling(NamedTuple):
    """How tokens are chosen. Temperature 0 is greedy under every rule; a `replay` gives the tokens instead."""

    rule: Verification = "greedy"
    temperature: float = 0.0
    seed: int = 0
    replay: ReplayedText | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the target's tokens are argmaxes of its logits."""
        return self.temperature == 0.0 or self.rule == "greedy"

    @property
    def drafts_are_sampled(self) -> bool:
        """Whether the draft samples its tokens too, as only the ratio rule requires."""
        return self.rule == "ratio" and not self.is_greedy


GREEDY = Sampling()


def decide(logits_TV: Array, window: Window, sampling: Sampling, position: int) -> Verdict:
    """Return the verdict of the rule on the target's logits [T, V]; `position` is the text position after row 0."""
    rule, temperature, seed, _ = sampling

    def own(depth: int) -> float:
        return uniform(seed, "target", position + depth)

    def accept(depth: int, *rank: int) -> float:
        return uniform(seed, "accept", position + depth, *rank)

    if sampling.is_greedy:
        return decide_greedy(lambda row: _best(logits_TV[row]), window, sampling, position)
    if rule == "match":
        return verify_match(logits_TV, window, temperature, own)
    if rule == "ratio":
        return verify_ratio(logits_TV, window, temperature, own, accept)
    if rule == "one-hot":
        return verify_one_hot(logits_TV, window, temperature, own, accept)
    return verify_typical(logits_TV, window, temperature, own)


def _best(logits_V: Array) -> int:
    """Return the best id, or `NO_NUMBER` for logits with NaN."""
    numbers = wide(logits_V)  # argmax of bfloat16 is several times slower than converting first
    best = int(numbers.argmax())
    return NO_NUMBER if math.isnan(numbers[best]) else best


def decide_greedy(best: Callable[[int], int], window: Window, sampling: Sampling, position: int) -> Verdict:
    """Return the greedy verdict; `best` returns the best id of a row, which a replay replaces.

    Raises `LaneError` if a token is `NO_NUMBER`.
    """
    replay = sampling.replay

    def choose(row: int, depth: int, _drafted: Sequence[int]) -> int:
        own = best(row)
        token = own if replay is None else replay.target_token(position + depth, own)
        if token == NO_NUMBER:
            raise LaneError("the logits of a model hold nan: none is the best of them")
        return token

    return _follow(window, choose)


def verify_match(logits_TV: Array, window: Window, temperature: float, own: Draw) -> Verdict:
    """Accept drafted tokens that equal the target's samples, which are those of plain decoding."""

    def choose(row: int, depth: int, _drafted: Sequence[int]) -> int:
        return sample(relative_probabilities(logits_TV[row], temperature), own(depth))

    return _follow(window, choose)


def verify_ratio(logits_TV: Array, window: Window, temperature: float, own: Draw, accept: Draw) -> Verdict:
    """Accept a drafted token with the ratio of its two probabilities; after a refusal sample the residual.

    Exact if every token of the chain was sampled from its entry in `window.distributions`.
    """
    assert not window.parents, "the ratio rule is not for trees"

    def choose(row: int, depth: int, drafted: Sequence[int]) -> int:
        target = relative_probabilities(logits_TV[row], temperature)
        if not drafted:
            return sample(target, own(depth))
        (token,), drafted_from = drafted, window.distributions[depth]
        share = drafted_from.probabilities[drafted_from.tokens.index(token)]
        if accept(depth) * share * target.sum() < target[token]:
            return token
        return sample(residual(target, drafted_from), own(depth))

    return _follow(window, choose)


def verify_one_hot(logits_TV: Array, window: Window, temperature: float, own: Draw, accept: SiblingDraw) -> Verdict:
    """Accept siblings in order, each with its probability given the refusals before it; else sample the rest."""

    def choose(row: int, depth: int, drafted: Sequence[int]) -> int:
        left = relative_probabilities(logits_TV[row], temperature)
        for rank, token in enumerate(drafted):
            # if only this token has weight left, it is accepted, so some weight always remains
            if accept(depth, rank) * left.sum() < left[token]:
                return token
            left[token] = 0.0
        return sample(left, own(depth))

    return _follow(window, choose)


def verify_typical(logits_TV: Array, window: Window, temperature: float, own: Draw) -> Verdict:
    """Accept the deepest path of plausible tokens, the first of equals, then sample from the target. Lossy."""
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    plausible: dict[int, NDArray[np.bool_]] = {}
    for node, (token, parent) in enumerate(zip(window.tokens, _parents(window), strict=True)):
        if parent not in paths:
            continue
        if parent not in plausible:
            plausible[parent] = _plausible(probabilities(logits_TV[parent + 1], temperature))
        if plausible[parent][token]:
            paths[node] = (*paths[parent], node)
    last, path = max(paths.items(), key=lambda item: len(item[1]))
    return _verdict(window, path, sample(relative_probabilities(logits_TV[last + 1], temperature), own(len(path))))


def _follow(window: Window, choose: Choose) -> Verdict:
    """Return the verdict that accepts drafted tokens as long as `choose` returns one of them."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(_parents(window)):
        children[parent].append(node)
    at = ROOT
    path: list[int] = []
    while True:
        drafted = [window.tokens[child] for child in children[at]]
        token = choose(at + 1, len(path), drafted)
        if token not in drafted:
            return _verdict(window, path, token)
        at = children[at][drafted.index(token)]
        path.append(at)


def _parents(window: Window) -> Sequence[int]:
    return window.parents or range(ROOT, len(window.tokens) - 1)


def _verdict(window: Window, path: Sequence[int], next_token: int) -> Verdict:
    """Return a verdict, which has a path only for a tree."""
    return Verdict(len(path), next_token, path=tuple(path) if window.parents else ())


def _plausible(target: Probabilities) -> NDArray[np.bool_]:
    """Return which ids are plausible [V]: those above a threshold that is lower for a distribution of more entropy."""
    likely = target[target > 0]
    entropy = -float(np.sum(likely * np.log(likely)))
    return target > min(TYPICAL_PROBABILITY, TYPICAL_ENTROPY_SHARE * math.exp(-entropy))
