"""The weights that a graph of a decoder's layer is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.backends.lane_device import Dtype
from runtime.backends.openvino.packing import PackedMatrix, digest_of, packed
from runtime.memory.collection import give_back_freed
from runtime.storage.stored_decoder import StoredDecoder

_LINEARS: Final = ("qkv", "out", "gate_up", "down")


class PackedLinear(NamedTuple):
    """A matrix and what is added to its products."""

    matrix: PackedMatrix
    bias: NDArray[Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """All weights of a layer, its matrices in the form of the graph; names are those of `runtime.models.decoder`."""

    input_norm: NDArray[Any]
    qkv: PackedLinear
    q_norm: NDArray[Any] | None
    k_norm: NDArray[Any] | None
    out: PackedLinear
    mlp_norm: NDArray[Any]
    gate_up: PackedLinear
    down: PackedLinear

    @property
    def matrices(self) -> Iterator[PackedMatrix]:
        """All four."""
        return (getattr(self, name).matrix for name in _LINEARS)

    @property
    def num_bytes(self) -> int:
        """Bytes of its matrices, as a graph holds them."""
        return sum(matrix.num_bytes for matrix in self.matrices)

    def digest(self) -> str:
        """Return what tells the layer from others."""
        biases = [getattr(self, name).bias for name in _LINEARS]
        vectors = [self.input_norm, self.q_norm, self.k_norm, self.mlp_norm, *biases]
        return " ".join(
            [*(matrix.digest() for matrix in self.matrices), *("" if v is None else digest_of(v) for v in vectors)]
        )


class LayersTaken:
    """The weights of a decoder's layers, taken when first asked for; the decoder loses matrices that are rounded."""

    def __init__(self, stored: StoredDecoder, form: Dtype, dtype: np.dtype[Any]) -> None:
        self._layers, self._form, self._dtype = stored.layers, form, dtype
        self._taken: dict[int, LayerWeights] = {}

    def __getitem__(self, index: int) -> LayerWeights:
        if index not in self._taken:
            self._taken[index] = _taken(self._layers[index], self._form, self._dtype)
            if self._form in ("int8", "int4"):
                give_back_freed()
        return self._taken[index]


def _taken(layer: dict[str, NDArray[Any]], form: Dtype, dtype: np.dtype[Any]) -> LayerWeights:
    take = layer.pop if form in ("int8", "int4") else layer.__getitem__
    linears = {
        name: PackedLinear(packed(take(f"{name}.weight"), form, dtype), layer.get(f"{name}.bias")) for name in _LINEARS
    }
    return LayerWeights(
        input_norm=layer["input_norm"],
        mlp_norm=layer["mlp_norm"],
        q_norm=layer.get("q_norm"),
        k_norm=layer.get("k_norm"),
        **linears,
    )
