"""Distributions over tokens [V] in float64, what a draft leaves over of them, and draws by place instead of by order.

Draws that depended on the order in which positions are verified would make the text depend on the schedule. Each use
has its own stream, so no draw is used for two decisions.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ConfigError
from decoding.messages import Candidates
from runtime.arrays import Array, as_array, is_tensor
from runtime.models.ranking import ranked_ids

Stream = Literal["target", "accept", "draft"]
"""Decisions with draws: the target's token, whether a drafted token is accepted, the draft's token."""

_BITS = 53
"""A float64 holds this many bits of a number below one."""

Probabilities = NDArray[np.float64]

LEAST_TEMPERATURE: Final = 1e-3
MOST_TEMPERATURE: Final = 100.0
"""Below the one, text is greedy but for rounding; above the other, it is noise."""


def require_temperature(temperature: float) -> None:
    """Raise `ConfigError` where texts mean nothing at a temperature."""
    if temperature and not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        msg = f"temperature is {temperature:g}: it must be 0, or {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}"
        raise ConfigError(msg)


def probabilities(logits_V: Array, temperature: float) -> Probabilities:
    """Return the softmax of logits at a temperature above zero, in float64 [V]."""
    own = as_array(logits_V) if is_tensor(logits_V) else logits_V
    scores = own.astype(np.float64) / temperature
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()  # type: ignore[no-any-return]


def residual(target: Probabilities, drafted_from: Candidates) -> Probabilities:
    """Return the rest of the target's distribution after a sampled draft: max(target - draft, 0), not normalised."""
    left = target.copy()
    left[list(drafted_from.tokens)] -= drafted_from.probabilities
    np.maximum(left, 0.0, out=left)
    # equal up to rounding: then a refusal is a rounding error itself, and the target's own distribution is right
    return left if left.any() else target


def sample(weights: Probabilities, draw: float) -> int:
    """Return the token at which the cumulated weights pass the share `draw`; a token of weight zero never."""
    cumulated = np.cumsum(weights)
    return int(np.searchsorted(cumulated, draw * cumulated[-1], side="right"))


def truncated(logits_V: Array, temperature: float, count: int) -> Candidates:
    """Return the `count` likeliest ids and their renormalised probabilities, which a draft samples from and sends."""
    ids = ranked_ids(logits_V[None], min(count, len(logits_V)))[0]
    return Candidates(tuple(ids.tolist()), tuple(probabilities(logits_V[ids], temperature).tolist()))


def draw_from(candidates: Candidates, draw: float) -> int:
    """Return one of the candidates, by the inverse of their cumulated probabilities."""
    return candidates.tokens[sample(np.asarray(candidates.probabilities), draw)]


def uniform(seed: int, stream: Stream, *place: int) -> float:
    """Return the draw in [0, 1) of a text position, and a rank among its drafted tokens: a hash of 53 bits."""
    digest = blake2b(" ".join(map(str, (seed, stream, *place))).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _BITS)) * 2.0**-_BITS
