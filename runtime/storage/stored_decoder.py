"""Loads a decoder's weights as numpy arrays. Compiled lanes build graphs from them, torch a `Decoder`.

Parameters have the names of `runtime.models.decoder.Decoder`. Shapes: the legend there; P positions.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ModelFormatError
from runtime.arrays import rms_norm
from runtime.models.config import IN_BITS, ModelConfig, decoder_shapes, decoder_tensors

_HEAD: Final = "lm_head.weight"
_SCALES: Final = ("_scale", "_scale_inv")
"""Endings of the names of scales of quantized weights, by ModelOpt, compressed-tensors and DeepSeek."""
_PARTS: Final = 256
"""Number of parts in which matrices are compared, to limit the memory of a comparison."""

Tables = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Cosines and sines [P, H] of every position."""


class EmbeddingRows(NamedTuple):
    """Rows of an embedding or of `lm_head`."""

    weight: NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDecoder:
    """The weights of a decoder with RMS norms: embedding and `lm_head` [V, D], float32 `final_norm`.

    `layers` holds the parameters of each layer by name; a lane removes them once it has built its graphs.
    """

    config: ModelConfig
    embedding: EmbeddingRows
    lm_head: EmbeddingRows
    final_norm: NDArray[np.float32]
    rotary: Tables
    layers: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    def embedded(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the hidden states before the first layer, [..., D]."""
        return self.embedding.weight[ids].astype(np.float32)  # type: ignore[no-any-return]

    def normalise(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return hidden states after the final norm, which `lm_head` reads."""
        return rms_norm(x, self.final_norm, self.config.norm_eps)


def stored_decoder(config: ModelConfig, arrays: dict[str, NDArray[Any]]) -> StoredDecoder:
    """Return the decoder with these parameters, by name."""
    embedding = EmbeddingRows(arrays["embedding.weight"])
    return StoredDecoder(
        config=config,
        embedding=embedding,
        lm_head=EmbeddingRows(arrays["lm_head.weight"]) if "lm_head.weight" in arrays else embedding,
        final_norm=arrays["final_norm"].astype(np.float32),
        rotary=rotary_tables(config),
        layers=by_layer(arrays),
    )


def by_layer(arrays: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """Return the parameters of every layer (`layers.0.qkv.weight`) by their names in the layer (`qkv.weight`)."""
    layers: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        if name.startswith("layers."):
            _, index, name_in_layer = name.split(".", maxsplit=2)
            layers.setdefault(int(index), {})[name_in_layer] = array
    return [layers[index] for index in sorted(layers)]


def load_stored_decoder(folder: Path, dtype: np.dtype[Any], *, with_layers: bool = True) -> StoredDecoder:
    """Return a Hugging Face folder's decoder (see `each_parameter`); 16-bit weights stay so, as graphs convert them."""
    config = ModelConfig.from_folder(folder)
    arrays = dict(each_parameter(folder, config, dtype, with_layers=with_layers, widens=False))
    return stored_decoder(config, arrays)


def each_parameter(
    folder: Path, config: ModelConfig, dtype: np.dtype[Any], *, with_layers: bool = True, widens: bool = True
) -> Iterable[tuple[str, NDArray[Any]]]:
    """Return the parameters of a Hugging Face folder's decoder, by our names and in `dtype`.

    Parameters stored in `dtype` are memory-mapped. A folder for random weights gets `random_arrays`. Without
    `with_layers` only the parameters outside of layers are read, which a draft shares with its target; for `widens` see
    `joined_parameters`. Raises `ModelError` for a missing or damaged file, or a missing or wrong tensor.
    """
    config = config if with_layers else replace(config, num_layers=0)
    wanted, shapes = decoder_tensors(config), decoder_shapes(config)
    if config.random_seed is not None:
        return random_arrays(shapes, config.random_seed, dtype).items()
    from runtime.storage.safetensors_files import joined_parameters, read_arrays  # imports safetensors

    names = {_HEAD, *(name for theirs in wanted.values() for name in theirs)}
    scales = {name + ending for name in names for ending in _SCALES}
    found = read_arrays(folder, names | scales)
    if scale := min(scales & found.keys(), default=None):
        raise ModelFormatError(f"{folder}: {scale} is of quantized weights, which are not read; {IN_BITS}")
    if config.tie_embeddings and _HEAD in found:
        _require_equal(found[wanted["embedding.weight"][0]], found[_HEAD], folder)
    return joined_parameters(wanted, shapes, found, dtype, folder=folder, widens=widens)


def _require_equal(embedding_VD: NDArray[Any], head_VD: NDArray[Any], folder: Path) -> None:
    """Raise `ModelFormatError` if the files have an `lm_head` that differs from the embedding, though they are tied."""
    one, other = (np.array_split(array.view(np.uint8), _PARTS) for array in (embedding_VD, head_VD))
    if not all(map(np.array_equal, one, other)):
        raise ModelFormatError(
            f"{folder}: config.json ties lm_head to the embedding (tie_word_embeddings), but the files hold a "
            f"{_HEAD} that is another; set tie_word_embeddings to false to use it"
        )


_POSITIONS: Final = 4096
"""Positions computed at once, to limit the memory of float64 angles."""


def rotary_tables(config: ModelConfig) -> Tables:
    """Return the rotary tables of all positions, computed in float64; for learned positions they rotate by nothing."""
    half = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = half * 0 if config.positions == "learned" else config.rope_theta**-half
    if (scaling := config.rope_scaling) is not None:
        rotations = scaling.original_max_position / (2 * math.pi / frequencies)
        smooth = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        smooth = smooth.clip(0.0, 1.0)
        frequencies = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    cosines, sines = np.empty((2, config.max_position, 2 * len(half)), np.float32)
    for start in range(0, config.max_position, _POSITIONS):
        positions = np.arange(start, min(start + _POSITIONS, config.max_position), dtype=np.float64)
        angles = positions[:, None] * frequencies
        cosines[start : start + _POSITIONS] = np.tile(np.cos(angles), 2)
        sines[start : start + _POSITIONS] = np.tile(np.sin(angles), 2)
    return cosines, sines


_BLOCK: Final = 1 << 22
"""Size of the block of random numbers, large enough that matrices begin at different places of it."""


def random_arrays(shapes: Mapping[str, Sequence[int]], seed: int, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """Return random arrays by name: matrices are views of one block of small random numbers, norms ones, biases zeros.

    The rows of a matrix overlap in the block, and begin at a place that depends on seed and name. So no two rows are
    equal, and a model of any size takes no more memory than a copy of the block for each width of its matrices.
    """
    block = np.random.default_rng(seed).standard_normal(_BLOCK, np.float32)
    blocks: dict[float, NDArray[Any]] = {}

    def made(name: str, shape: Sequence[int]) -> NDArray[Any]:
        if len(shape) != 2:
            return np.full(shape, 0 if name.endswith("bias") else 1, dtype)
        scale = float(np.float32(shape[1] ** -0.5))
        if scale not in blocks:
            blocks[scale] = (block * scale).astype(dtype, copy=False)
        start, step = _window(shape, seed, name)
        size = dtype.itemsize
        return np.lib.stride_tricks.as_strided(blocks[scale][start:], tuple(shape), (step * size, size))

    return {name: made(name, shape) for name, shape in shapes.items()}


def _window(shape: Sequence[int], seed: int, name: str) -> tuple[int, int]:
    """Return where a matrix [O, I] begins in the block, and the distance between its rows, the largest that fits."""
    rows, size = shape
    step = min(size, (_BLOCK - size) // rows)
    if step < 1:
        raise ValueError(f"{name}: no room for {rows} rows of {size} in a block of {_BLOCK}")
    last = _BLOCK - (rows - 1) * step - size
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (last + 1), step
