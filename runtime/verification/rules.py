"""Verification rules, which accept drafted tokens: greedy, match, ratio, one-hot and typical.

Row 0 of the target's logits decides what follows the last committed token, row i + 1 what follows drafted token i. All
rules but typical (Medusa, 2401.10774, section 3.3) leave the target's distribution as it is, provided a tree and the
order of its siblings were fixed before the draws. The ratio rule (Leviathan 2211.17192, Chen 2302.01318) is for chains
alone. Rules draw nothing themselves.
Shapes: T = len(window) + 1 rows, V vocabulary.
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
"""What is drawn for: the target's token, whether a drafted token is accepted, the draft's token."""

_BITS = 53
"""Bits that a float64 holds of a number below one."""
_BLOCK: Final = 512
"""Ids whose weights are summed before the sums are cumulated: an id at a time takes longer than all else together."""

Probabilities = NDArray[np.float64]

LEAST_TEMPERATURE: Final = 1e-3
MOST_TEMPERATURE: Final = 100.0
"""Below the first, text is greedy but for rounding; above the second, it is noise."""


def require_temperature(temperature: float, rule: Verification | None = None) -> None:
    """Raise `ConfigError` for a temperature out of bounds, or one at which the rule (None: any) draws nothing."""
    if temperature and not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        msg = f"temperature is {temperature:g}: it must be 0, or {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}"
        raise ConfigError(msg)
    if temperature and rule == "greedy":
        raise ConfigError(f"temperature is {temperature}: it must be 0 with verification greedy")


def is_lossy(rule: Verification, temperature: float) -> bool:
    """Return whether texts have another distribution than the target's."""
    return rule == "typical" and temperature > 0


def relative_probabilities(logits_V: Array, temperature: float) -> Probabilities:
    """Return the weights of a softmax, 1 for the likeliest id [V]; raise `LaneError` for logits that are no numbers."""
    # in one array: to allocate one for each step takes up to twice as long as all else
    weights = as_array(logits_V).astype(np.float64)
    if not math.isfinite(most := weights.max()):
        raise LaneError(f"the logits of a model hold {most}: nothing can be drawn from them")
    weights -= most
    weights *= 1 / temperature
    np.exp(weights, out=weights)
    return weights


def probabilities(logits_V: Array, temperature: float) -> Probabilities:
    """Return the softmax of logits, in float64 [V]; see `relative_probabilities`, which are enough to draw from."""
    weights = relative_probabilities(logits_V, temperature)
    weights /= weights.sum()
    return weights


def residual(target: Probabilities, drafted_from: Candidates) -> Probabilities:
    """Make of weights what a sampled draft leaves of them, max(target - draft, 0), as if both had the same sum.

    They are changed and returned: a copy of a whole vocabulary takes as long as all else.
    """
    ids = list(drafted_from.tokens)
    before = target[ids]
    target[ids] = np.maximum(before - target.sum() * np.asarray(drafted_from.probabilities), 0.0)
    if not target.any():
        # equal up to rounding: then a refusal is a rounding error itself, and the target's own distribution is right
        target[ids] = before
    return target


def sample(weights: Probabilities, draw: float) -> int:
    """Return the token at which the cumulated weights pass the share `draw`, never one of weight zero."""
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).cumsum()
    wanted = min(draw * blocks[-1], np.nextafter(blocks[-1], 0.0))  # the product of next to nothing may round up
    block = int(blocks.searchsorted(wanted, side="right"))
    start = block * _BLOCK
    cumulated = weights[start : start + _BLOCK].cumsum()
    rest = wanted - blocks[block - 1] if block else wanted
    # the two sums of a block differ by rounding, and a share of it has to stay below the one that is searched
    return start + int(cumulated.searchsorted(min(rest, np.nextafter(cumulated[-1], 0.0)), side="right"))


def truncated(logits_V: Array, temperature: float, count: int) -> Candidates:
    """Return the `count` likeliest ids and their renormalised probabilities, which a draft samples from and sends."""
    ids = ranked_ids(logits_V[None], min(count, len(logits_V)))[0]
    return Candidates(tuple(ids.tolist()), tuple(probabilities(logits_V[ids], temperature).tolist()))


def draw_from(candidates: Candidates, draw: float) -> int:
    """Return one of the candidates, by the inverse of their cumulated probabilities."""
    return candidates.tokens[sample(np.asarray(candidates.probabilities), draw)]


def seed_of(seed: int, prompt: Sequence[int]) -> int:
    """Return the seed of the draws after a prompt, of which the ids are given, so that prompts share none of them."""
    return int.from_bytes(blake2b(" ".join(map(str, (seed, *prompt))).encode(), digest_size=8).digest(), "little")


def uniform(seed: int, stream: Stream, *place: int) -> float:
    """Return the draw in [0, 1) of a text position, and a rank among its drafted tokens: a hash of 53 bits."""
    digest = blake2b(" ".join(map(str, (seed, stream, *place))).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _BITS)) * 2.0**-_BITS


ROOT: Final = -1
"""The parent of a window's first tokens: the last committed token."""

TYPICAL_PROBABILITY: Final = 0.09
TYPICAL_ENTROPY_SHARE: Final = 0.3
"""Epsilon and alpha of typical acceptance, as Medusa's authors set them."""

Draw = Callable[[int], float]
"""The draw in [0, 1) for the token after a path of so many drafted ones."""
SiblingDraw = Callable[[int, int], float]
"""The draw in [0, 1) for one of several siblings: from the drafted tokens before it, and its rank among them."""
Choose = Callable[[int, int, Sequence[int]], int]
"""The token that follows: from the row, the drafted tokens before it, and what is drafted for its place."""


class Sampling(NamedTuple):
    """How tokens are chosen. Temperature 0 is greedy under every rule; with a `replay` they are known before."""

    rule: Verification = "greedy"
    temperature: float = 0.0
    seed: int = 0
    replay: ReplayedText | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the target takes its argmax."""
        return self.temperature == 0.0 or self.rule == "greedy"

    @property
    def drafts_are_sampled(self) -> bool:
        """Whether the draft samples its tokens too: only the ratio rule makes use of it."""
        return self.rule == "ratio" and not self.is_greedy


GREEDY = Sampling()


def decide(logits_TV: Array, window: Window, sampling: Sampling, position: int) -> Verdict:
    """Apply the rule to the target's logits [T, V]; row 0's draws are those of the text position `position`."""
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
    """Return the best id, or `NO_NUMBER`."""
    numbers = wide(logits_V)  # argmax of bfloat16 is several times slower than converting first
    best = int(numbers.argmax())
    return NO_NUMBER if math.isnan(numbers[best]) else best


def decide_greedy(best: Callable[[int], int], window: Window, sampling: Sampling, position: int) -> Verdict:
    """Decide where nothing is drawn: what follows a row is its `best` id, or the replay's.

    Raises `LaneError` where that is `NO_NUMBER`.
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
    """Follow the target's own samples, as plain decoding draws them."""

    def choose(row: int, depth: int, _drafted: Sequence[int]) -> int:
        return sample(relative_probabilities(logits_TV[row], temperature), own(depth))

    return _follow(window, choose)


def verify_ratio(logits_TV: Array, window: Window, temperature: float, own: Draw, accept: Draw) -> Verdict:
    """Accept a drafted token with the ratio of its two probabilities; on refusal sample what the draft missed.

    Exact if every token of the chain was drawn from its entry in `window.distributions`.
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
    """Accept each sibling in order with the target's probability without those refused; else sample the rest."""

    def choose(row: int, depth: int, drafted: Sequence[int]) -> int:
        left = relative_probabilities(logits_TV[row], temperature)
        for rank, token in enumerate(drafted):
            # a last token with weight is its own sum, so it is always accepted and something is always left
            if accept(depth, rank) * left.sum() < left[token]:
                return token
            left[token] = 0.0
        return sample(left, own(depth))

    return _follow(window, choose)


def verify_typical(logits_TV: Array, window: Window, temperature: float, own: Draw) -> Verdict:
    """Accept the deepest path of plausible tokens, the first of several, then a sample of the target's. Lossy."""
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
    """Return a verdict, with a path if the window is a tree: that of a chain follows from its length."""
    return Verdict(len(path), next_token, path=tuple(path) if window.parents else ())


def _plausible(target: Probabilities) -> NDArray[np.bool_]:
    """Return the tokens that typical acceptance takes [V]: those above a bar that sinks as the distribution widens."""
    likely = target[target > 0]
    entropy = -float(np.sum(likely * np.log(likely)))
    return target > min(TYPICAL_PROBABILITY, TYPICAL_ENTROPY_SHARE * math.exp(-entropy))
