"""What a schedule takes of memory, lane by lane, worked out from the shapes of its models before anything is loaded.

Closed forms of what lanes allocate: weights, keys and values of the text and of every branch, and the most that one
pass needs in between. Weights that stay mapped on disk (`runtime.models.weights`) are counted as if they were copied,
so this is the most that is needed: but for matrices that are rounded to int8 or int4, which are read from there one by
one. No torch here: who plans has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

from decoding.errors import ModelFormatError
from decoding.files import parse_json
from decoding.schedule import Schedule
from runtime.arrays import FLOAT32
from runtime.backends.devices import OPENVINO
from runtime.backends.openvino.buckets import copies_bytes, slot_buckets
from runtime.models.config import ModelConfig
from runtime.models.hf_config import read_object

Dtype = Literal["bfloat16", "float32", "int8", "int4"]
ITEM_BYTES: Final[Mapping[Dtype, int]] = {"bfloat16": 2, "float32": 4, "int8": 2, "int4": 2}
"""Of what is computed with: embeddings, keys and values of int8 and int4 lanes are in bfloat16."""
_SCALE_BYTES: Final = 2
_INT4_GROUP: Final = 64
"""Inputs that share a scale in int4 (`runtime.backends.openvino.weights.packing`)."""

PROCESS_BYTES: Final = 150_000_000
"""Of a lane's process with torch and no model: 147 MB of its own, measured with torch 2.13 on Linux."""
COMPILED_PROCESS_BYTES: Final = 40_000_000
"""The same of a lane that computes by graphs: 35 MB of its own, measured with OpenVINO 2026.4 on Linux."""
_SLOTS_AT_ONCE: Final = 64
"""Slots of a cache come in multiples of `runtime.models.attention.KEYS_AT_ONCE`."""
_NO_WEIGHTS: Final = (".scale", "t2d", "d2t", "target_probe")
"""Ends of names of what trained folders hold besides (`runtime.storage`)."""
_PREFILL_ROWS: Final = 512
"""A prompt is read in pieces of so many tokens (`runtime.models.masks.prefill_pieces`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneNeed:
    """Bytes that a lane takes.

    Attributes:
        weights: of all models in it.
        keys_values: of the text.
        branches: keys and values of the draft's branches.
        working: states and logits of one pass.
        process: the lane's process before it has a model.
    """

    weights: int = 0
    keys_values: int = 0
    branches: int = 0
    working: int = 0
    process: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, each.name) for each in fields(self))

    def __add__(self, other: LaneNeed) -> LaneNeed:
        """Both in one lane."""
        return LaneNeed(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftSize:
    """What of a draft takes memory.

    Attributes:
        layers: shape of the layers that have keys and values.
        num_outputs: ids that it may propose.
        weights: bytes, once loaded.
        is_of_torch: whether torch computes it on lanes of graphs too, as it does heads.
    """

    layers: ModelConfig
    num_outputs: int
    weights: int
    is_of_torch: bool = False


def num_parameters(config: ModelConfig) -> int:
    """Parameters of a decoder: matrices, biases and norms."""
    hidden, head_width = config.hidden_size, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    wide = (2 if config.mlp == "gated" else 1) * config.intermediate_size
    norm = hidden * (2 if config.norm == "layer" else 1)
    layer = config.num_layer_parameters + 2 * norm + 2 * config.head_dim * config.qk_norm
    layer += head_width * config.attention_bias + hidden * config.attention_out_bias + (wide + hidden) * config.mlp_bias
    return config.num_layers * layer + _table_parameters(config) + norm


def weight_bytes(config: ModelConfig, dtype: Dtype) -> int:
    """Bytes of a decoder's parameters, and of its table of rotations in float32.

    Of matrices in int8 and int4 those are counted that graphs hold, next to the embedding, the head that they are made
    of, and the matrices of queries, keys and values, which are joined in memory before they are rounded. Of random
    weights none of these takes any: they stay windows onto one block.
    """
    tables = 2 * config.max_position * config.head_dim * 4
    if dtype not in ("int8", "int4"):
        return num_parameters(config) * ITEM_BYTES[dtype] + tables
    joined = config.num_layers * prod(_layer_matrices(config)[0])
    others = num_parameters(config) - config.num_layers * config.num_layer_parameters
    if config.random_seed is not None:
        joined, others = 0, others - _table_parameters(config)
    # the head costs most to round: it is int8 in both
    head = matrix_bytes(config.vocab_size, config.hidden_size, "int8")
    return _matrices_bytes(config, dtype) + head + (joined + others) * ITEM_BYTES[dtype] + tables


def _table_parameters(config: ModelConfig) -> int:
    """Of embedding, head and learned positions."""
    rows = config.vocab_size * (1 if config.tie_embeddings else 2)
    rows += config.max_position + 2 if config.positions == "learned" else 0
    return rows * config.hidden_size


def matrix_bytes(outputs: int, inputs: int, dtype: Dtype) -> int:
    """Bytes of a matrix as graphs hold it."""
    if dtype == "int8":
        return outputs * (inputs + _SCALE_BYTES)
    if dtype == "int4":
        groups = inputs // _INT4_GROUP if inputs % _INT4_GROUP == 0 else 1
        return outputs * inputs // 2 + outputs * groups * _SCALE_BYTES
    return outputs * inputs * ITEM_BYTES[dtype]


def _matrices_bytes(config: ModelConfig, dtype: Dtype) -> int:
    return config.num_layers * sum(matrix_bytes(*shape, dtype) for shape in _layer_matrices(config))


def _layer_matrices(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Outputs and inputs of a layer's matrices: of queries, keys and values; after attention; of the MLP."""
    hidden, wide = config.hidden_size, config.intermediate_size
    heads, width = config.num_heads + 2 * config.num_kv_heads, config.num_heads * config.head_dim
    gates = 2 if config.mlp == "gated" else 1
    return (heads * config.head_dim, hidden), (hidden, width), (gates * wide, hidden), (hidden, wide)


def keys_values_bytes(config: ModelConfig, num_slots: int, dtype: Dtype) -> int:
    """Bytes of keys and values of a text."""
    slots = num_slots + -num_slots % _SLOTS_AT_ONCE
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * slots * ITEM_BYTES[dtype]


def memory_needed(
    target: ModelConfig, schedule: Schedule, *, dtype: Dtype, num_tokens: int, draft: DraftSize | None = None
) -> dict[str, LaneNeed]:
    """What a schedule needs, by the names of its lanes.

    Args:
        target: the target's shape.
        schedule: whose windows and branches.
        dtype: of weights and caches.
        num_tokens: of prompt and text together, at most.
        draft: what drafts in the draft's lane; None without a draft of its own, or with one that takes nothing.
    """
    rows = schedule.num_rows
    held, computed = _held(schedule.target_lane, dtype), _computed(schedule.target_lane, dtype)
    needs = {
        schedule.target_lane: LaneNeed(
            weights=weight_bytes(target, held) + _copies_bytes(schedule.target_lane, target, held),
            keys_values=keys_values_bytes(target, _held_slots(schedule.target_lane, num_tokens + rows), computed),
            working=_working_bytes(target, rows, target.vocab_size, num_tokens, computed),
            process=_process_bytes(schedule.target_lane, draft if schedule.is_pooled else None),
        )
    }
    if draft is None or schedule.draft_lane is None:
        return needs
    branches = sum(schedule.draft_roots_per_row) + sum(schedule.exit_roots_per_row)
    if _is_compiled(schedule.draft_lane) and not _has_open_sizes(schedule.draft_lane):
        branches *= 2  # calls over some of them are filled up
    held, computed = _held(schedule.draft_lane, dtype), _computed(schedule.draft_lane, dtype)
    text = keys_values_bytes(draft.layers, _held_slots(schedule.draft_lane, num_tokens + 2 * rows), computed)
    own = LaneNeed(
        weights=draft.weights * ITEM_BYTES[held] // ITEM_BYTES[dtype]
        + _copies_bytes(schedule.draft_lane, draft.layers, held),
        keys_values=text,
        branches=branches * text,
        working=_working_bytes(draft.layers, max(branches, 1), draft.num_outputs, num_tokens, computed),
        process=0 if schedule.is_pooled else _process_bytes(schedule.draft_lane, draft),
    )
    lane = schedule.draft_lane
    return needs | {lane: needs.get(lane, LaneNeed()) + own}


def _process_bytes(lane: str, draft: DraftSize | None) -> int:
    """Of a lane's process; one that computes by graphs imports torch for heads alone."""
    needs_torch = not _is_compiled(lane) or (draft is not None and draft.is_of_torch)
    return PROCESS_BYTES if needs_torch else COMPILED_PROCESS_BYTES


def _held_slots(lane: str, num_slots: int) -> int:
    """Slots that a lane holds for a text of so many: buffers of compiled lanes stay when a text moves to the next."""
    return sum(slot_buckets(num_slots)) if _is_compiled(lane) else num_slots


def _copies_bytes(lane: str, config: ModelConfig, dtype: Dtype) -> int:
    """Bytes of copies of graphs, where lanes have open ones.

    Where a CPU has no bfloat16, calls over 8 rows and more take some rounded matrices in a second layout, of int8: half
    of them, measured with AVX2.
    """
    if not _has_open_sizes(lane) or not config.num_layers:
        return 0
    has_second = dtype in ("int8", "int4") and _lacks_bfloat16(lane)
    second_layout = _matrices_bytes(config, "int8") // 2 if has_second else 0
    return copies_bytes(_matrices_bytes(config, dtype)) + second_layout


def _lacks_bfloat16(lane: str) -> bool:
    """Whether a lane computes graphs by a CPU without bfloat16, in float32."""
    if not _has_open_sizes(lane):
        return False
    from runtime.backends.openvino.limits import limits_of  # imports OpenVINO, which lanes of torch need not have

    return limits_of("CPU").half == FLOAT32


def _computed(lane: str, dtype: Dtype) -> Dtype:
    """What a lane computes with and keeps keys in."""
    return "float32" if _lacks_bfloat16(lane) else dtype


def _held(lane: str, dtype: Dtype) -> Dtype:
    """The form that a lane holds matrices in."""
    return dtype if dtype in ("int8", "int4") else _computed(lane, dtype)


def _is_compiled(lane: str) -> bool:
    return lane.startswith(OPENVINO)


def _has_open_sizes(lane: str) -> bool:
    return lane.startswith(f"{OPENVINO}CPU")


def on_ranks(need: LaneNeed, num_ranks: int, target: ModelConfig, dtype: Dtype) -> LaneNeed:
    """What a lane needs whose target is split over ranks of this machine.

    Layers, keys and values are dealt out; a process, its embedding and what a pass holds are every rank's own.
    """
    embedding = target.vocab_size * target.hidden_size * ITEM_BYTES[dtype]
    return need + LaneNeed(
        weights=(num_ranks - 1) * embedding,
        working=(num_ranks - 1) * need.working,
        process=(num_ranks - 1) * need.process,
    )


def draft_size(folder: Path, target: ModelConfig, dtype: Dtype, *, shares_lane: bool) -> DraftSize:
    """The size of a drafter from its folder: exact for a whole model, and an estimate for trained ones.

    Trained drafts and heads have what their files hold, and rows of the target's head; in a lane of their own they load
    the target's embedding and head too. Heads without layers of their own are counted as if they had one.

    Raises:
        ModelError: a file of the folder cannot be read, or is not of a supported model.
    """
    raw = read_object(folder / "config.json", holds="a drafter's folder holds config.json and its weights")
    if raw.get("speculators_model_type") == "mirrorsd_parallel_track":
        return _parallel_tracks(raw, target, dtype)
    if "speculators_model_type" not in raw and "architectures" in raw and "eagle3" not in str(raw).lower():
        config = ModelConfig.from_folder(folder)
        return DraftSize(layers=config, num_outputs=config.vocab_size, weights=weight_bytes(config, dtype))
    return _trained(folder, raw, target, dtype, shares_lane=shares_lane)


def _parallel_tracks(raw: Mapping[str, Any], target: ModelConfig, dtype: Dtype) -> DraftSize:
    """All tracks together; each has an embedding of its own."""
    try:
        names = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
        num_tracks, depth = int(raw["num_tracks"]), 2 * int(raw["layers_per_segment"])
        sizes: dict[str, Any] = {name: int(raw[name]) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(f"config.json of a draft of parallel tracks is damaged ({error!r})") from error
    layers = replace(target, num_layers=depth * num_tracks, tie_embeddings=False, **sizes)
    further = (num_tracks - 1) * target.vocab_size * layers.hidden_size * ITEM_BYTES[dtype]
    weights = weight_bytes(layers, dtype) + further
    return DraftSize(layers=layers, num_outputs=target.vocab_size, weights=weights, is_of_torch=True)


def _trained(
    folder: Path, raw: Mapping[str, Any], target: ModelConfig, dtype: Dtype, *, shares_lane: bool
) -> DraftSize:
    stored = sum(_num_stored(file) for file in folder.glob("*.safetensors"))
    num_layers = len(raw.get("source_layers") or "x") if stored else 0
    num_outputs = raw.get("draft_vocab_size") or target.vocab_size
    num_shared = num_outputs * target.hidden_size if stored else 0
    if stored and not shares_lane:
        num_shared += num_parameters(replace(target, num_layers=0))
    return DraftSize(
        layers=replace(target, num_layers=num_layers),
        num_outputs=num_outputs,
        weights=(stored + num_shared) * ITEM_BYTES[dtype],
        is_of_torch=bool(stored) and raw.get("speculators_model_type") != "mirrorsd_draft",
    )


def _num_stored(path: Path) -> int:
    """Weights in a safetensors file, by its header; scales of rows and maps of the vocabulary are none.

    Raises:
        ModelFormatError: it has no readable header.
    """
    try:
        with path.open("rb") as file:
            header = parse_json(file.read(int.from_bytes(file.read(8), "little")))
        shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
        return sum(prod(shape) for name, shape in shapes.items() if not name.endswith(_NO_WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ModelFormatError(f"{path}: not a safetensors file ({error!r}); copy it again") from error


def _working_bytes(config: ModelConfig, num_rows: int, num_outputs: int, num_tokens: int, dtype: Dtype) -> int:
    """The most that a pass holds at once: states of a layer, and logits of its rows, which are ranked in float32."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    wide = (3 if config.mlp == "gated" else 2) * config.intermediate_size
    row = (3 * config.hidden_size + 2 * heads + wide) * ITEM_BYTES[dtype]
    logits = num_outputs * (ITEM_BYTES[dtype] + 4)
    return max(min(num_tokens, _PREFILL_ROWS) * row, num_rows * (row + logits))
