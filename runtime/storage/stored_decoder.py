"""A decoder as numpy arrays: what a compiled lane makes its graphs of, and what drafts, heads and exits share with it.

Names are those of `runtime.models.decoder.Decoder`. Shapes: its legend; P positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import as_array, rms_norm
from runtime.models.config import ModelConfig
from runtime.models.random_weights import random_arrays
from runtime.models.rotary import Tables, rotary_tables
from runtime.storage.decoder_names import decoder_shapes, decoder_tensors
from runtime.storage.joined_arrays import joined_parameters
from runtime.storage.safetensors_files import read_arrays

if TYPE_CHECKING:
    from runtime.models.decoder import Decoder


class Matrix(NamedTuple):
    """Rows of an embedding or a head."""

    weight: NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDecoder:
    """The weights of a decoder, of a family whose norms are root mean squares.

    Attributes:
        config: its sizes.
        embedding: of every token [V, D].
        lm_head: of every token too; where the two are tied, the same.
        final_norm: scales before the head, float32 [D].
        rotary: cosines and sines.
        layers: parameters by layer and name; who has taken them to make a graph of may take them away.
    """

    config: ModelConfig
    embedding: Matrix
    lm_head: Matrix
    final_norm: NDArray[np.float32]
    rotary: Tables
    layers: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    def embedded(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """Hidden states that enter the first layer, [..., D]."""
        return self.embedding.weight[ids].astype(np.float32)  # type: ignore[no-any-return]

    def normalise(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The final norm: what heads read."""
        return rms_norm(x, self.final_norm, self.config.norm_eps)


def stored_decoder(config: ModelConfig, arrays: dict[str, NDArray[Any]], *, max_position: int) -> StoredDecoder:
    """The decoder of parameters by their names."""
    embedding = Matrix(arrays["embedding.weight"])
    return StoredDecoder(
        config=config,
        embedding=embedding,
        lm_head=Matrix(arrays["lm_head.weight"]) if "lm_head.weight" in arrays else embedding,
        final_norm=arrays["final_norm"].astype(np.float32),
        rotary=rotary_tables(config, max_position),
        layers=by_layer(arrays),
    )


def by_layer(arrays: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """Parameters of layers, `layers.0.qkv.weight` and so on, as those of each by their own names."""
    layers: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        if name.startswith("layers."):
            _, index, own = name.split(".", maxsplit=2)
            layers.setdefault(int(index), {})[own] = array
    return [layers[index] for index in sorted(layers)]


def load_stored_decoder(
    folder: Path, dtype: np.dtype[Any], *, max_position: int | None = None, with_layers: bool = True
) -> StoredDecoder:
    """The decoder of a Hugging Face folder, weights in `dtype`; random ones share one block of memory.

    `with_layers=False` reads the embedding, the final norm and the output head only: what a draft shares with it.

    Raises:
        ModelError: a file is missing or truncated, a tensor is missing, has the wrong shape, or numbers that are not
            finite.
    """
    config = ModelConfig.from_folder(folder)
    read = config if with_layers else replace(config, num_layers=0)
    wanted, shapes = decoder_tensors(read), decoder_shapes(read)
    if config.random_seed is None:
        found = read_arrays(folder, {name for names in wanted.values() for name in names})
        arrays = joined_parameters(wanted, shapes, found, dtype, folder=folder)
    else:
        arrays = random_arrays(shapes, config.random_seed, dtype)
    return stored_decoder(config, arrays, max_position=max_position or config.max_position)


def stored_form(decoder: Decoder) -> StoredDecoder:
    """The same weights in the same memory."""
    parameters = dict(decoder.named_parameters())
    arrays = {name: as_array(weight) for name, weight in parameters.items() if not weight.is_meta}
    stored = stored_decoder(decoder.config, arrays, max_position=1)
    cos_PH, sin_PH = as_array(decoder.rotary.cos_PH), as_array(decoder.rotary.sin_PH)
    return replace(stored, rotary=(cos_PH, sin_PH))
