"""Hidden states of the target that a draft or a head reads, as they cross between lanes.

Shapes: legend of `runtime.models.decoder`, plus E layers that are read.
"""

from __future__ import annotations

from runtime.arrays import Array, unit_scale


def normalise_features(hidden_TED: Array, eps: float) -> Array:
    """Each layer's hidden state at unit scale, [..., T, E * D]."""
    *rows, num_layers, size = hidden_TED.shape
    return unit_scale(hidden_TED, eps).reshape(*rows, num_layers * size)
