"""An exit's adapter whose products are computed by graphs, and the little between them by numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import rms_norm
from runtime.backends.backend import Head

Floats = NDArray[np.float32]


class CompiledAdapter:
    """Computes what `runtime.target.exit_adapter.ExitAdapter` does, of the same weights."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], product: Callable[[NDArray[Any]], Head], eps: float) -> None:
        """Args: its weights by their names there; what computes products with a matrix; of its norm."""
        self._affine, self._up, self._down = (product(arrays[f"{name}.weight"]) for name in ("affine", "up", "down"))
        self._bias, self._norm = (arrays[name].astype(np.float32) for name in ("affine.bias", "norm"))
        self._eps = eps

    def __call__(self, x_BTD: Floats) -> Floats:
        """Hidden states after the exit layer -> states for the target's final norm and head, [B, T, D]."""
        x_BTD = self._affine(x_BTD) + self._bias
        wide = self._up(rms_norm(x_BTD, self._norm, self._eps))
        sigmoid = (np.tanh(wide / 2) + 1) / 2  # which overflows nowhere
        return x_BTD + self._down(wide * sigmoid)  # type: ignore[no-any-return]
