"""The folder of weights that were trained for a target: `config.json` and `model.safetensors`.

The layout is that of vLLM's speculators: the config has the kind of the weights and the target (verifier), and the maps
`t2d` and `d2t` are between the reduced vocabulary and the target's. Embedding and `lm_head` are the target's and not
stored; some embedding rows are stored (`target_probe`) to check whether a target is the right one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from decoding.errors import ModelError, ModelFormatError
from decoding.files import replace_file, sha256_of
from decoding.validation import Many, errors_as, validated
from runtime.arrays import BFLOAT16, Array, as_array
from runtime.models.config import ModelConfig
from runtime.models.hf_config import CONFIG_FILE, read_object
from runtime.storage.safetensors_files import QUANTIZATION_FORMAT, arrays_of, content_of, pack, take, unpack

if TYPE_CHECKING:
    from runtime.models.decoder import Decoder
    from runtime.storage.stored_decoder import StoredDecoder

WEIGHTS_FILE = "model.safetensors"
_PROBE_ROWS = 16
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))
_LEAST_LENGTH = 1e-8
_LEAST_SIMILARITY = 0.9
"""Least cosine similarity of stored and present probe rows; roundings of one model are above it, others far below."""


class Strict(BaseModel):
    """Base of the parts of a config: refuses unknown fields of a file, and can be made from any object's attributes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, from_attributes=True)


class Verifier(Strict):
    """The target, by the name in vLLM's speculators."""

    name_or_path: str


class SpeculatorsConfig(Strict):
    """The part `speculators_config` of the config, as in vLLM's speculators."""

    algorithm: str
    verifier: Verifier


class TargetShape(Strict):
    """Sizes in which a target must equal the one that the weights were trained for."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float

    @classmethod
    def of(cls, config: ModelConfig) -> "TargetShape":
        """Return the shape of a target; raise `ModelError` for a family that nothing can be trained for."""
        config.require_rotary("trained drafts, heads and exits")
        return cls.model_validate(config)


Width = Annotated[int, Field(ge=1, le=1 << 24)]
"""Rows or columns of a matrix."""
Count = Annotated[int, Field(ge=1, le=64)]
"""Number of heads, blocks or streams."""
Layers = Annotated[Many[Annotated[int, Field(ge=1, le=4096)]], Field(max_length=4096)]
"""Layers of the target, counted from 1."""


class FolderConfig(Strict):
    """The fields of every such `config.json`; a subclass for each kind of weights adds further ones."""

    layer_fields: ClassVar[tuple[str, ...]] = ()
    """Names of fields with layers of the target."""
    unquantized: ClassVar[tuple[str, ...]] = ()
    """Endings of the names of matrices that are stored as bfloat16."""

    speculators_model_type: str
    speculators_config: SpeculatorsConfig
    target_shape: TargetShape
    draft_vocab_size: Width = Field(validation_alias=AliasChoices("draft_vocab_size", "vocab_size"))
    quantization_format: Literal["int8-symmetric-per-row"] = QUANTIZATION_FORMAT
    weights_sha256: str = ""
    metadata: dict[str, Any]


B = TypeVar("B", bound=BaseModel)
C = TypeVar("C", bound=FolderConfig)

EmbeddedTarget: TypeAlias = "Decoder | StoredDecoder"
"""A target whose embedding is loaded, in torch or numpy."""


@dataclass(frozen=True, slots=True)
class TrainedWeights(Generic[C]):
    """The content of a folder that fits its target: arrays, and kept target ids, ascending [draft_vocab_size]."""

    config: C
    arrays: dict[str, NDArray[Any]]
    kept_ids: NDArray[np.int64]
    path: Path

    def unpacked(self, shapes: Mapping[str, Sequence[int]], dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        """Return the weights in `dtype`, see `unpack`."""
        return unpack(self.arrays, shapes, dtype, source=str(self.path))


def save_trained(
    folder: Path,
    kind: type[FolderConfig],
    weights: Mapping[str, Array],
    *,
    target: Any,
    target_name: str,
    kept_ids: Array,
    fields: dict[str, Any],
) -> None:
    """Write trained weights, matrices as int8, and what identifies their target; see `save_folder`.

    `target` must have `config` and `embedding`; `fields` are `metadata` (how they were trained) and the fields that
    only this kind has.
    """
    algorithm = kind.model_fields["speculators_model_type"].default
    config = kind(
        speculators_config=SpeculatorsConfig(algorithm=algorithm, verifier=Verifier(name_or_path=target_name)),
        target_shape=TargetShape.of(target.config),
        **fields | {"vocab_size": len(kept_ids)},
    )
    unquantized = {name for name in weights if name.endswith(kind.unquantized)}
    arrays = pack(weights, unquantized=unquantized) | _target_tensors(target.embedding.weight, kept_ids)
    save_folder(folder, config, arrays)


def load_trained(folder: Path, kind: type[C], target: EmbeddedTarget) -> TrainedWeights[C]:
    """Return a folder's weights; raise `ModelError` if they are for another target, `ModelFormatError` if damaged."""
    config, arrays = load_folder(folder, kind)
    for name in config.layer_fields:
        last = target.config.num_layers
        if wrong := [layer for layer in getattr(config, name) if not 1 <= layer <= last]:
            raise ModelError(f"{folder / CONFIG_FILE}: {name} {wrong[0]} is outside the target's layers 1..{last}")
    return TrainedWeights(config, arrays, _take_kept_ids(arrays, config, target, folder), folder / WEIGHTS_FILE)


def save_folder(folder: Path, config: FolderConfig, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write both files, each atomically, with `config.weights_sha256` filled in; raise `ModelError` if that fails."""
    weights = content_of(arrays)
    config = config.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()})
    text = config.model_dump_json(indent=2) + "\n"
    with errors_as(ModelError, f"{folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / WEIGHTS_FILE, weights)
        replace_file(folder / CONFIG_FILE, text.encode())


def load_folder(folder: Path, kind: type[C]) -> tuple[C, dict[str, NDArray[Any]]]:
    """Return a folder's config and arrays; raise `ModelFormatError` if they are damaged or do not match."""
    holds = f"a drafter folder holds {CONFIG_FILE} and {WEIGHTS_FILE}"
    config = read_config(folder, kind, holds)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise ModelFormatError(f"{path}: no such file; {holds}")
    with errors_as(ModelFormatError, f"{path}: cannot be read"):
        digest = sha256_of(path)
    if digest != config.weights_sha256:
        msg = f"{path}: truncated, damaged, or not the file that {CONFIG_FILE} describes; copy it again"
        raise ModelFormatError(msg)
    return config, arrays_of(path)


def read_config(folder: Path, kind: type[B], holds: str) -> B:
    """Return a folder's config; raise `ModelFormatError` for a wrong file, or (ending with `holds`) a missing one."""
    path = folder / CONFIG_FILE
    return validated(kind, read_object(path, holds=holds), ModelFormatError, source=str(path))


def _target_tensors(embedding_VD: Array, kept_ids: Array) -> dict[str, NDArray[Any]]:
    """Return the arrays that identify the target: `t2d`, `d2t` and `target_probe`."""
    kept = as_array(kept_ids)
    t2d = np.zeros(len(embedding_VD), bool)
    t2d[kept] = True
    return {"t2d": t2d, "d2t": kept - np.arange(len(kept)), "target_probe": _probe(embedding_VD).astype(BFLOAT16)}


def _take_kept_ids(
    tensors: dict[str, NDArray[Any]], config: FolderConfig, target: EmbeddedTarget, folder: Path
) -> NDArray[np.int64]:
    """Remove the arrays of `_target_tensors` and return the kept target ids [draft_vocab_size].

    Raises `ModelError` for another target, `ModelFormatError` for contradictory arrays.
    """
    path, name = folder / WEIGHTS_FILE, config.speculators_config.verifier.name_or_path
    present = TargetShape.of(target.config).model_dump()
    for field, wanted in config.target_shape.model_dump().items():
        if present[field] != wanted:
            msg = f"was trained for {name} with {field} {wanted}; this target has {field} {present[field]}"
            raise ModelError(f"{folder}: {msg}")
    t2d, d2t, probe = (take(tensors, name, str(path)) for name in ("t2d", "d2t", "target_probe"))
    kept_ids = mapped_ids(t2d, d2t, config.draft_vocab_size, target, source=str(path))
    present_probe = _probe(target.embedding.weight)
    similarity = _similarity(present_probe, probe) if present_probe.shape == probe.shape else 0.0
    if not similarity >= _LEAST_SIMILARITY:
        msg = f"{folder}: was trained for {name}; the embedding of this target is another (similarity {similarity:.2f})"
        raise ModelError(msg)
    return kept_ids


def mapped_ids(
    t2d: NDArray[Any], d2t: NDArray[Any], num_kept: int, target: EmbeddedTarget, *, source: str
) -> NDArray[np.int64]:
    """Return the kept target ids [num_kept] of both maps; raise `ModelFormatError` if these contradict each other."""
    if d2t.shape == (num_kept,) and t2d.shape == (target.config.vocab_size,) and d2t.dtype in _INTEGERS:
        kept_ids = d2t.astype(np.int64) + np.arange(num_kept)
        if np.array_equal(np.flatnonzero(t2d), kept_ids):
            return kept_ids
    raise ModelFormatError(f"{source}: t2d and d2t do not map {num_kept} draft ids to target ids and back")


def _probe(embedding_VD: Array) -> NDArray[np.float32]:
    rows = np.linspace(0, len(embedding_VD) - 1, _PROBE_ROWS, dtype=np.float32).astype(np.int64).tolist()
    return as_array(embedding_VD[rows]).astype(np.float32)


def _similarity(ours: NDArray[np.float32], theirs: NDArray[Any]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # NaN compares as not similar
        theirs = theirs.astype(np.float32)
        lengths = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
        similarities = (ours * theirs).sum(axis=-1) / np.maximum(lengths, _LEAST_LENGTH)
        # rows of padding are zero in both and count as equal
        return float(np.mean(np.where((ours == 0).all(-1) & (theirs == 0).all(-1), 1.0, similarities)))
