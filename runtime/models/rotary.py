"""Rotary position embedding: the tables that all lanes rotate by, computed once in float64 and kept in float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.models.config import Llama3Rope, ModelConfig

Tables = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Cosines and sines [P, H] of every position."""


def rotary_tables(config: ModelConfig, max_position: int) -> Tables:
    """The tables of so many positions; where positions are learned, nothing is rotated."""
    half = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    is_learned = config.positions == "learned"
    frequencies = half * 0 if is_learned else _scaled(config.rope_theta**-half, config.rope_scaling)
    angles = np.arange(max_position, dtype=np.float64)[:, None] * frequencies
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _scaled(frequencies: NDArray[Any], scaling: Llama3Rope | None) -> NDArray[Any]:
    if scaling is None:
        return frequencies
    rotations = scaling.original_max_position / (2 * math.pi / frequencies)
    smooth = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clip(0.0, 1.0)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies  # type: ignore[no-any-return]
