"""What of a decoder's layer its graph is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from runtime.backends.openvino.packing import Form, Matrix, digest_of, packed
from runtime.memory.freed import give_back_freed
from runtime.models.decoder import Decoder, Layer

_LINEARS: Final = ("qkv", "out", "gate_up", "down")


class Linear(NamedTuple):
    """A matrix and what is added to its products."""

    matrix: Matrix
    bias: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """All weights of a layer, its matrices in the form of the graph; names are those of `runtime.models.decoder`."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def matrices(self) -> Iterator[Matrix]:
        """All four."""
        return (getattr(self, name).matrix for name in _LINEARS)

    @property
    def num_bytes(self) -> int:
        """Of its matrices, as a graph holds them."""
        return sum(matrix.num_bytes for matrix in self.matrices)

    def digest(self) -> str:
        """What tells the layer from others."""
        biases = [getattr(self, name).bias for name in _LINEARS]
        vectors = [self.input_norm, self.q_norm, self.k_norm, self.mlp_norm, *biases]
        return " ".join(
            [*(matrix.digest() for matrix in self.matrices), *("" if v is None else digest_of(v) for v in vectors)]
        )

    def give_back(self) -> None:
        """Let go of memory that is on disk too: a graph has what it needs of it."""
        for matrix in self.matrices:
            if matrix.block is not None:
                matrix.block.give_back()


class LayersTaken:
    """The weights of a decoder's layers, each taken when it is first asked for."""

    def __init__(self, decoder: Decoder, form: Form, dtype: torch.dtype) -> None:
        self._layers, self._form, self._dtype = decoder.layers, form, dtype
        self._taken: dict[int, LayerWeights] = {}

    def __getitem__(self, index: int) -> LayerWeights:
        if index not in self._taken:
            self._taken[index] = _taken(cast("Layer", self._layers[index]), self._form, self._dtype)
        return self._taken[index]


def _taken(layer: Layer, form: Form, dtype: torch.dtype) -> LayerWeights:
    """The weights of a layer.

    Matrices that had to be rounded are the layer's own no longer: they are on the meta device from now on.
    """
    linears = {name: Linear(packed(own.weight, form, dtype), own.bias) for name, own in _linears(layer)}
    if form in ("int8", "int4"):
        for _, own in _linears(layer):
            own.weight = nn.Parameter(own.weight.detach().to("meta"), requires_grad=False)
        give_back_freed()
    return LayerWeights(
        input_norm=layer.input_norm, mlp_norm=layer.mlp_norm, q_norm=layer.q_norm, k_norm=layer.k_norm, **linears
    )


def _linears(layer: Layer) -> Iterator[tuple[str, nn.Linear]]:
    return ((name, getattr(layer, name)) for name in _LINEARS)
