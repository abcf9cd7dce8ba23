"""Which path of a drafted tree stands: the rules greedy, match, one-hot and typical.

Greedy, match and one-hot choose a token at every node that is reached, and the tree is followed for as long as it
holds that token; they leave the target's distribution as it is, provided the tree and the order of its siblings
were fixed before the draws. Typical acceptance (Medusa, 2401.10774, section 3.3) follows what is plausible instead
of what the target would have said: it is lossy.

Row 0 decides what follows the last committed token, row i + 1 what follows node i. Rules hold no state and draw
nothing themselves; rows that are not reached cost nothing. Shapes: T = len(window) + 1 rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from decoding.messages import Verdict, Window
from runtime.verification.distributions import Probabilities, probabilities, sample

ROOT: Final = -1
"""The parent of a tree's first tokens: the last committed token."""

TYPICAL_PROBABILITY: Final = 0.09
TYPICAL_ENTROPY_SHARE: Final = 0.3
"""Epsilon and alpha of typical acceptance, as Medusa's authors use them."""

Draw = Callable[[int], float]
"""The draw in [0, 1) for the token behind a path of so many drafted ones."""
AcceptDraw = Callable[[int, int], float]
"""The same for the decision on one sibling: tokens before it, and its rank among the siblings."""
Choose = Callable[[int, int, Sequence[int]], int]
"""The token that follows: from the row, the drafted tokens before it, and what is drafted for its place."""


def verify_greedy(logits_TV: Tensor, window: Window) -> Verdict:
    """Follow the target's argmax; of equal logits the lowest id is it."""

    def choose(row: int, _depth: int, _drafted: Sequence[int]) -> int:
        # argmax of bfloat16 is several times slower than converting first
        return int(logits_TV[row].float().argmax())

    return _follow(window, choose)


def verify_match(logits_TV: Tensor, window: Window, temperature: float, own: Draw) -> Verdict:
    """Follow the target's own samples, as plain decoding draws them."""

    def choose(row: int, depth: int, _drafted: Sequence[int]) -> int:
        return sample(probabilities(logits_TV[row], temperature), own(depth))

    return _follow(window, choose)


def verify_one_hot(logits_TV: Tensor, window: Window, temperature: float, own: Draw, accept: AcceptDraw) -> Verdict:
    """Offer siblings in order: each stands with the target's probability once those refused before it are ruled out.

    When all are refused, the next token is sampled from the rest.
    """

    def choose(row: int, depth: int, drafted: Sequence[int]) -> int:
        left = probabilities(logits_TV[row], temperature)
        for rank, token in enumerate(drafted):
            # a last token with weight is its own sum, so it always stands and something is always left
            if accept(depth, rank) * left.sum() < left[token]:
                return token
            left[token] = 0.0
        return sample(left, own(depth))

    return _follow(window, choose)


def verify_typical(logits_TV: Tensor, window: Window, temperature: float, own: Draw) -> Verdict:
    """The deepest path of plausible tokens, the first of several; behind it a sample of the target's. Lossy."""
    depths = {ROOT: 0}
    plausible: dict[int, NDArray[np.bool_]] = {}
    for node, (token, parent) in enumerate(zip(window.tokens, window.parents, strict=True)):
        if parent not in depths:
            continue
        if parent not in plausible:
            plausible[parent] = _plausible(probabilities(logits_TV[parent + 1], temperature))
        if plausible[parent][token]:
            depths[node] = depths[parent] + 1
    deepest = max(depths, key=lambda node: depths[node])
    next_token = sample(probabilities(logits_TV[deepest + 1], temperature), own(depths[deepest]))
    return Verdict(depths[deepest], next_token, path=_path_to(deepest, window.parents))


def _follow(window: Window, choose: Choose) -> Verdict:
    """Go from the last committed token to the child that is chosen, until what is chosen is none of them."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(window.parents):
        children[parent].append(node)
    at = ROOT
    path: list[int] = []
    while True:
        drafted = [window.tokens[child] for child in children[at]]
        token = choose(at + 1, len(path), drafted)
        if token not in drafted:
            return Verdict(len(path), token, path=tuple(path))
        at = children[at][drafted.index(token)]
        path.append(at)


def _path_to(node: int, parents: Sequence[int]) -> tuple[int, ...]:
    path = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return tuple(reversed(path))


def _plausible(target: Probabilities) -> NDArray[np.bool_]:
    """Which tokens typical acceptance takes, [V]: those above a bar that sinks as the distribution widens."""
    likely = target[target > 0]
    entropy = -float(np.sum(likely * np.log(likely)))
    return target > min(TYPICAL_PROBABILITY, TYPICAL_ENTROPY_SHARE * math.exp(-entropy))
