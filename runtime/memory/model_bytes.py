"""Computes the bytes of decoders and drafters (weights, KV caches, passes) from shapes and folders, without torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Final

from decoding.errors import ModelFormatError
from runtime.backends.lane_device import INT4_GROUP, PREFILL_ROWS, Dtype
from runtime.models.config import ModelConfig, decoder_shapes
from runtime.models.hf_config import read_object

ITEM_BYTES: Final[Mapping[Dtype, int]] = {"bfloat16": 2, "float32": 4, "int8": 2, "int4": 2}
"""Bytes of a number in arithmetic, embeddings, keys and values; in int8 and int4 lanes these are bfloat16."""
_SCALE_BYTES: Final = 2
"""Bytes of the scale of a row or group of quantised weights."""

_SLOTS_AT_ONCE: Final = 64
"""The slots of a KV cache are a multiple of this (`runtime.models.row_invariance.KEYS_AT_ONCE`)."""


@lru_cache
def num_parameters(config: ModelConfig) -> int:
    """Return the number of a decoder's parameters: matrices, biases and norms."""
    return sum(map(prod, decoder_shapes(config).values()))


def weight_bytes(config: ModelConfig, dtype: Dtype) -> int:
    """Return the bytes of a decoder's parameters, and of its float32 rotary tables.

    In int8 and int4, matrices and `lm_head` count as graphs hold them, since their 16-bit weights are freed. The
    embedding stays; a random one takes no memory, as it is a view of a shared block.
    """
    tables = 2 * config.max_position * config.head_dim * 4
    if dtype not in ("int8", "int4"):
        return num_parameters(config) * ITEM_BYTES[dtype] + tables
    shapes = decoder_shapes(replace(config, num_layers=0))
    gone = ["lm_head.weight"] if config.random_seed is None else [name for name in shapes if len(shapes[name]) == 2]
    others = num_parameters(config) - config.num_layers * config.num_layer_parameters
    others -= sum(prod(shapes[name]) for name in gone if name in shapes)
    # `lm_head` is int8 in both formats, as int4 harms it most
    head = matrix_bytes(config.vocab_size, config.hidden_size, "int8")
    return matrices_bytes(config, dtype) + head + others * ITEM_BYTES[dtype] + tables


def matrix_bytes(outputs: int, inputs: int, dtype: Dtype) -> int:
    """Return the bytes of a matrix packed for graphs."""
    if dtype == "int8":
        return outputs * (inputs + _SCALE_BYTES)
    if dtype == "int4":
        groups = inputs // INT4_GROUP if inputs % INT4_GROUP == 0 else 1
        return outputs * inputs // 2 + outputs * groups * _SCALE_BYTES
    return outputs * inputs * ITEM_BYTES[dtype]


def matrices_bytes(config: ModelConfig, dtype: Dtype) -> int:
    """Return the bytes of the matrices of all layers, packed for graphs."""
    shapes = [
        shape for name, shape in decoder_shapes(replace(config, num_layers=1)).items() if name.startswith("layers.")
    ]
    return config.num_layers * sum(matrix_bytes(*shape, dtype) for shape in shapes if len(shape) == 2)


def keys_values_bytes(config: ModelConfig, num_slots: int, dtype: Dtype) -> int:
    """Return the bytes of the KV cache of one sequence."""
    slots = num_slots + -num_slots % _SLOTS_AT_ONCE
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * slots * ITEM_BYTES[dtype]


def working_bytes(config: ModelConfig, num_rows: int, num_outputs: int, num_tokens: int, dtype: Dtype) -> int:
    """Return the most bytes that a pass needs at once: activations of a layer, and logits, also in float32."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    wide = (3 if config.mlp == "gated" else 2) * config.intermediate_size
    row = (3 * config.hidden_size + 2 * heads + wide) * ITEM_BYTES[dtype]
    logits = num_outputs * (ITEM_BYTES[dtype] + 4)
    return max(min(num_tokens, PREFILL_ROWS) * row, num_rows * (row + logits))


_NO_WEIGHTS: Final = (".scale", "t2d", "d2t", "target_probe")
"""Endings of the names of arrays in trained folders that are not weights (`runtime.storage`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftSize:
    """The size of a drafter: its layers with KV caches, the number of ids that it may propose, bytes of its weights.

    `is_of_torch` says whether torch computes it even on compiled lanes, as it does draft heads.
    """

    layers: ModelConfig
    num_outputs: int
    weights: int
    is_of_torch: bool = False


Sizer = Callable[[Path, ModelConfig, Dtype, bool], DraftSize]
"""Returns the size of a folder's drafter, from the folder, the target's config, the weight format, and whether it is in
the target's lane."""


def whole_model_size(folder: Path, target: ModelConfig, dtype: Dtype, shares_lane: bool) -> DraftSize:  # noqa: ARG001, FBT001
    """Return the exact size of a draft model that shares no weights with the target."""
    config = ModelConfig.from_folder(folder)
    return DraftSize(layers=config, num_outputs=config.vocab_size, weights=weight_bytes(config, dtype))


def tracks_size(folder: Path, target: ModelConfig, dtype: Dtype, shares_lane: bool) -> DraftSize:  # noqa: ARG001, FBT001
    """Return the size of all parallel tracks, each with an embedding; raise `ModelFormatError` for a damaged config."""
    from runtime.drafters.language_model.folder import read_tracks

    config, track = read_tracks(folder, target)
    layers = replace(track, num_layers=track.num_layers * config.num_tracks)
    further = (config.num_tracks - 1) * target.vocab_size * layers.hidden_size * ITEM_BYTES[dtype]
    weights = weight_bytes(layers, dtype) + further
    return DraftSize(layers=layers, num_outputs=target.vocab_size, weights=weights)


def trained_size(folder: Path, target: ModelConfig, dtype: Dtype, shares_lane: bool) -> DraftSize:  # noqa: FBT001
    """Return an estimate of the size of a trained draft or head: its files, and its rows of the target's `lm_head`.

    In a separate lane it loads the target's embedding and `lm_head` too. Heads without layers count as one layer.
    Raises `ModelFormatError` if a file cannot be read.
    """
    from runtime.storage.safetensors_files import arrays_of  # imports safetensors

    raw = read_object(folder / "config.json", holds="a drafter's folder holds config.json and its weights")
    arrays = chain.from_iterable(arrays_of(file).items() for file in folder.glob("*.safetensors"))
    stored = sum(array.size for name, array in arrays if not name.endswith(_NO_WEIGHTS))
    layers, num_outputs = raw.get("source_layers") or "x", raw.get("draft_vocab_size") or target.vocab_size
    if not isinstance(layers, list | str) or type(num_outputs) is not int or not 0 < num_outputs <= target.vocab_size:
        raise ModelFormatError(f"{folder / 'config.json'}: source_layers or draft_vocab_size is damaged")
    num_layers = len(layers) if stored else 0
    num_shared = num_outputs * target.hidden_size if stored else 0
    if stored and not shares_lane:
        num_shared += num_parameters(replace(target, num_layers=0))
    return DraftSize(
        layers=replace(target, num_layers=num_layers),
        num_outputs=num_outputs,
        weights=(stored + num_shared) * ITEM_BYTES[dtype],
    )
