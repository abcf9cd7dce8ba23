"""Distributions over tokens: those of logits at a temperature, what a draft leaves over, and drawing from either.

Probabilities are float64. Shapes: V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoding.messages import Candidates

Probabilities = NDArray[np.float64]


def probabilities(logits_V: Tensor, temperature: float) -> Probabilities:
    """The softmax of logits at a temperature above zero, in float64 [V]."""
    scaled = torch.softmax(logits_V.double() / temperature, dim=-1)
    return scaled.numpy()


def residual(target: Probabilities, drafted_from: Candidates) -> Probabilities:
    """What of the target's distribution a sampled draft leaves over: max(target - draft, 0), not normalised."""
    left = target.copy()
    left[list(drafted_from.tokens)] -= drafted_from.probabilities
    np.maximum(left, 0.0, out=left)
    # equal up to rounding: then a refusal is a rounding error itself, and the target's own distribution is right
    return left if left.any() else target


def sample(weights: Probabilities, draw: float) -> int:
    """The token at which the cumulated weights pass the share `draw`; a token of weight zero never."""
    cumulated = np.cumsum(weights)
    return int(np.searchsorted(cumulated, draw * cumulated[-1], side="right"))


def truncated(logits_V: Tensor, temperature: float, count: int) -> Candidates:
    """The `count` likeliest ids and their renormalised probabilities: what a draft samples from and sends."""
    values, ids = logits_V.double().topk(min(count, len(logits_V)))
    return Candidates(tuple(ids.tolist()), tuple(torch.softmax(values / temperature, dim=-1).tolist()))


def draw_from(candidates: Candidates, draw: float) -> int:
    """One of the candidates, by the inverse of their cumulated probabilities."""
    return candidates.tokens[sample(np.asarray(candidates.probabilities), draw)]
