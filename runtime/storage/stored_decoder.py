"""A decoder as numpy arrays: the one loader of its weights. Compiled lanes make graphs of them, torch a `Decoder`.

Names are those of `runtime.models.decoder.Decoder`. Shapes: its legend; P positions.
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
"""Endings of the names of scales beside quantized weights: those of ModelOpt and compressed-tensors, and DeepSeek's."""
_PARTS: Final = 256
"""Parts of a matrix that are compared one by one: a comparison takes memory."""

Tables = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Cosines and sines [P, H] of every position."""


class EmbeddingRows(NamedTuple):
    """Rows of an embedding or of `lm_head`."""

    weight: NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDecoder:
    """The weights of a decoder whose norms are root mean squares: embedding and `lm_head` [V, D], float32 `final_norm`.

    `layers` holds parameters by layer and name; a lane that has made graphs of them removes them.
    """

    config: ModelConfig
    embedding: EmbeddingRows
    lm_head: EmbeddingRows
    final_norm: NDArray[np.float32]
    rotary: Tables
    layers: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    def embedded(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the hidden states that enter the first layer, [..., D]."""
        return self.embedding.weight[ids].astype(np.float32)  # type: ignore[no-any-return]

    def normalise(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what `lm_head` reads: hidden states after the final norm."""
        return rms_norm(x, self.final_norm, self.config.norm_eps)


def stored_decoder(config: ModelConfig, arrays: dict[str, NDArray[Any]], *, max_position: int) -> StoredDecoder:
    """Return the decoder of parameters by their names."""
    embedding = EmbeddingRows(arrays["embedding.weight"])
    return StoredDecoder(
        config=config,
        embedding=embedding,
        lm_head=EmbeddingRows(arrays["lm_head.weight"]) if "lm_head.weight" in arrays else embedding,
        final_norm=arrays["final_norm"].astype(np.float32),
        rotary=rotary_tables(config, max_position),
        layers=by_layer(arrays),
    )


def by_layer(arrays: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """Return the parameters of every layer (`layers.0.qkv.weight`) by their names in the layer (`qkv.weight`)."""
    layers: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        if name.startswith("layers."):
            _, index, own = name.split(".", maxsplit=2)
            layers.setdefault(int(index), {})[own] = array
    return [layers[index] for index in sorted(layers)]


def load_stored_decoder(folder: Path, dtype: np.dtype[Any], *, with_layers: bool = True) -> StoredDecoder:
    """Return the decoder of a Hugging Face folder as arrays (`each_parameter`): graphs widen those of 16 bits."""
    config = ModelConfig.from_folder(folder)
    arrays = dict(each_parameter(folder, config, dtype, with_layers=with_layers, widens=False))
    return stored_decoder(config, arrays, max_position=config.max_position)


def each_parameter(
    folder: Path, config: ModelConfig, dtype: np.dtype[Any], *, with_layers: bool = True, widens: bool = True
) -> Iterable[tuple[str, NDArray[Any]]]:
    """Yield the parameters of a Hugging Face folder's decoder by our names, in `dtype`; what has it stays on disk.

    Folders of random weights (`runtime.models.model_folder`) get them in one block. `with_layers=False` reads what a
    draft shares with its target; `widens=False` leaves what has 16 bits and is to be float32 as it is. Raises
    `ModelError` for a missing or damaged file, or a missing or wrong tensor.
    """
    config = config if with_layers else replace(config, num_layers=0)
    wanted, shapes = decoder_tensors(config), decoder_shapes(config)
    if config.random_seed is not None:
        return random_arrays(shapes, config.random_seed, dtype).items()
    from runtime.storage.safetensors_files import joined_parameters, read_arrays  # what decodes needs no safetensors

    names = {_HEAD, *(name for theirs in wanted.values() for name in theirs)}
    scales = {name + ending for name in names for ending in _SCALES}
    found = read_arrays(folder, names | scales)
    if scale := min(scales & found.keys(), default=None):
        raise ModelFormatError(f"{folder}: {scale} is of quantized weights, which are not read; {IN_BITS}")
    if config.tie_embeddings and _HEAD in found:
        _require_equal(found[wanted["embedding.weight"][0]], found[_HEAD], folder)
    return joined_parameters(wanted, shapes, found, dtype, folder=folder, widens=widens)


def _require_equal(embedding_VD: NDArray[Any], head_VD: NDArray[Any], folder: Path) -> None:
    """Raise `ModelFormatError` for a head of its own that a config says is the embedding: which one is meant?"""
    one, other = (np.array_split(array.view(np.uint8), _PARTS) for array in (embedding_VD, head_VD))
    if not all(map(np.array_equal, one, other)):
        raise ModelFormatError(
            f"{folder}: config.json ties lm_head to the embedding (tie_word_embeddings), but the files hold a "
            f"{_HEAD} that is another; set tie_word_embeddings to false to use it"
        )


_POSITIONS: Final = 4096
"""Positions whose angles are in memory at once, in float64."""


def rotary_tables(config: ModelConfig, max_position: int) -> Tables:
    """Return the rotary tables of so many positions, computed in float64; learned positions are not rotated."""
    half = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = half * 0 if config.positions == "learned" else config.rope_theta**-half
    if (scaling := config.rope_scaling) is not None:
        rotations = scaling.original_max_position / (2 * math.pi / frequencies)
        smooth = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        smooth = smooth.clip(0.0, 1.0)
        frequencies = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    cosines, sines = np.empty((2, max_position, 2 * len(half)), np.float32)
    for start in range(0, max_position, _POSITIONS):
        positions = np.arange(start, min(start + _POSITIONS, max_position), dtype=np.float64)
        angles = positions[:, None] * frequencies
        cosines[start : start + _POSITIONS] = np.tile(np.cos(angles), 2)
        sines[start : start + _POSITIONS] = np.tile(np.sin(angles), 2)
    return cosines, sines


_BLOCK: Final = 1 << 22
"""Numbers: windows of all matrices that models have begin at different places of it."""


def random_arrays(shapes: Mapping[str, Sequence[int]], seed: int, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """Return an array for every name: windows onto one block of small random numbers, ones for norms, zero biases.

    Rows of a matrix begin a few numbers after each other, at a place that the seed and its name tell: so no row is like
    another, and all models of a shape together take no more than the block.
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
        own, size = blocks[scale][start:], dtype.itemsize
        return np.lib.stride_tricks.as_strided(own, tuple(shape), (step * size, size))

    return {name: made(name, shape) for name, shape in shapes.items()}


def _window(shape: Sequence[int], seed: int, name: str) -> tuple[int, int]:
    """Return where a matrix [O, I] begins in the block, and the distance of its rows: as large as fits."""
    rows, size = shape
    step = min(size, (_BLOCK - size) // rows)
    if step < 1:
        raise ValueError(f"{name}: no room for {rows} rows of {size} in a block of {_BLOCK}")
    last = _BLOCK - (rows - 1) * step - size
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (last + 1), step
