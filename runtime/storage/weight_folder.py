"""A folder of trained weights that lean on a target: `config.json` and `model.safetensors`.

The layout follows vLLM's speculators: the config names its kind and its verifier, and two maps, `t2d` and
`d2t`, tie the reduced vocabulary to the target's. Embedding and head rows are the target's own and are not
stored; a few embedding rows (`target_probe`) show whether a target is the right one.
What the weights are is the business of `runtime.drafters.language_model.folder` and `runtime.target.exit_folder`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from decoding.errors import ModelError, ModelFormatError
from decoding.files import replace_file
from decoding.validation import Many, described
from runtime.arrays import BFLOAT16, Array, as_array, is_tensor
from runtime.models.config import ModelConfig
from runtime.storage.quantization import QUANTIZATION_FORMAT, take
from runtime.storage.safetensors_files import arrays_in, content_of

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_PROBE_ROWS = 16
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))
_LEAST_LENGTH = 1e-8
_LEAST_SIMILARITY = 0.9
"""Cosine of stored and present probe rows: other roundings of one model stay above, other models far below."""


class Strict(BaseModel):
    """A part of a config that holds the fields it has and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Verifier(Strict):
    """The target that checks what is drafted."""

    name_or_path: str


class SpeculatorsConfig(Strict):
    """The part of the config that vLLM's speculators calls by this name."""

    algorithm: str
    verifier: Verifier


class TargetShape(Strict):
    """What a target must have in common with the one that was trained for."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float

    @classmethod
    def of(cls, config: ModelConfig) -> TargetShape:
        """The shape of a target, or of a draft made for it; raises `ModelError` for one that none can be made for."""
        config.require_rotary("trained drafts, heads and exits")
        return cls(**{name: getattr(config, name) for name in cls.model_fields})


Width = Annotated[int, Field(ge=1, le=1 << 24)]
"""Of a matrix."""
Count = Annotated[int, Field(ge=1, le=64)]
"""Of heads, blocks or streams."""
Layers = Annotated[Many[Annotated[int, Field(ge=1, le=4096)]], Field(max_length=4096)]
"""Of the target, counted from 1."""


class FolderConfig(Strict):
    """What every `config.json` of this layout has; kinds add their own fields."""

    speculators_model_type: str
    speculators_config: SpeculatorsConfig
    target_shape: TargetShape
    draft_vocab_size: Width = Field(validation_alias=AliasChoices("draft_vocab_size", "vocab_size"))
    quantization_format: Literal["int8-symmetric-per-row"] = QUANTIZATION_FORMAT
    weights_sha256: str = ""
    metadata: dict[str, Any]

    @classmethod
    def of(cls, target: ModelConfig, target_name: str, metadata: Mapping[str, Any], **fields: Any) -> Self:
        """The config of weights trained for a target.

        Args:
            target: its shape.
            target_name: what a user calls it.
            metadata: anything JSON can hold: how they were trained.
            fields: those of the kind, and the size of the vocabulary.
        """
        verifier = Verifier(name_or_path=target_name)
        algorithm = cls.model_fields["speculators_model_type"].default
        return cls(
            speculators_config=SpeculatorsConfig(algorithm=algorithm, verifier=verifier),
            target_shape=TargetShape.of(target),
            metadata=dict(metadata),
            **fields,
        )

    def sizes(self, kind: type[S], **known: Any) -> S:
        """The dataclass that a model is built from: of what is known, and of the fields of the same names."""
        own = self.model_dump() | {"vocab_size": self.draft_vocab_size} | known
        return kind(**{field.name: own[field.name] for field in fields(kind)})  # type: ignore[arg-type]


B = TypeVar("B", bound=BaseModel)
C = TypeVar("C", bound=FolderConfig)
S = TypeVar("S")


class EmbeddedTarget(Protocol):
    """What ties weights to a target: its sizes and its embedding, of either library."""

    @property
    def config(self) -> ModelConfig:
        """Its sizes."""
        ...

    @property
    def embedding(self) -> Any:
        """Has its rows as `weight`."""
        ...


def save_folder(folder: Path, config: FolderConfig, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write both files over those of an older folder, each atomically; `config.weights_sha256` is filled in.

    Raises:
        ModelError: the folder cannot be written.
    """
    weights = content_of(arrays)
    config = config.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()})
    text = config.model_dump_json(indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / WEIGHTS_FILE, weights)
        replace_file(folder / CONFIG_FILE, text.encode())
    except OSError as error:
        raise ModelError(f"{folder}: cannot be written ({error})") from error


def load_folder(folder: Path, kind: type[C]) -> tuple[C, dict[str, NDArray[Any]]]:
    """Config and arrays of a folder.

    Raises:
        ModelFormatError: a file is missing, damaged, of another kind, or the two do not belong together.
    """
    holds = f"a drafter folder holds {CONFIG_FILE} and {WEIGHTS_FILE}"
    config = read_config(folder, kind, holds)
    path = folder / WEIGHTS_FILE
    content = _read(path, holds)
    if hashlib.sha256(content).hexdigest() != config.weights_sha256:
        msg = f"{path}: truncated, damaged, or not the file that {CONFIG_FILE} describes; copy it again"
        raise ModelFormatError(msg)
    try:
        return config, arrays_in(content)
    except SafetensorError as error:
        raise ModelFormatError(f"{path}: not a safetensors file ({error})") from error


def read_config(folder: Path, kind: type[B], holds: str) -> B:
    """The config of a folder; `holds` is what an error about a missing file goes on with.

    Raises:
        ModelFormatError: it is missing, or not of this kind.
    """
    path = folder / CONFIG_FILE
    try:
        return kind.model_validate_json(_read(path, holds))
    except ValidationError as error:
        raise ModelFormatError(described(error, source=str(path))) from error


def target_tensors(embedding_VD: Array, kept_ids: Array) -> dict[str, NDArray[Any]]:
    """The arrays that tie the weights to a target: `t2d`, `d2t` and `target_probe`."""
    kept = as_array(kept_ids) if is_tensor(kept_ids) else kept_ids
    t2d = np.zeros(len(embedding_VD), bool)
    t2d[kept] = True
    return {"t2d": t2d, "d2t": kept - np.arange(len(kept)), "target_probe": _probe(embedding_VD).astype(BFLOAT16)}


def take_kept_ids(
    tensors: dict[str, NDArray[Any]], config: FolderConfig, target: EmbeddedTarget, folder: Path
) -> NDArray[np.int64]:
    """The kept target ids [draft_vocab_size], once the target has proven to be the right one.

    The three tensors of `target_tensors` are removed from `tensors`.

    Raises:
        ModelError: the target is not the one that was trained for.
        ModelFormatError: one of the three is missing, or the maps contradict each other.
    """
    path = folder / WEIGHTS_FILE
    _require_shape(config, target, folder)
    t2d, d2t, probe = (take(tensors, name, str(path)) for name in ("t2d", "d2t", "target_probe"))
    kept_ids = mapped_ids(t2d, d2t, config.draft_vocab_size, target, source=str(path))
    own = _probe(target.embedding.weight)
    similarity = _similarity(own, probe) if own.shape == probe.shape else 0.0
    if not similarity >= _LEAST_SIMILARITY:
        name = config.speculators_config.verifier.name_or_path
        msg = f"{folder}: was trained for {name}; the embedding of this target is another (similarity {similarity:.2f})"
        raise ModelError(msg)
    return kept_ids


def mapped_ids(
    t2d: NDArray[Any], d2t: NDArray[Any], num_kept: int, target: EmbeddedTarget, *, source: str
) -> NDArray[np.int64]:
    """The kept target ids [num_kept] of the two maps; raises `ModelFormatError` where they contradict each other."""
    if d2t.shape == (num_kept,) and t2d.shape == (target.config.vocab_size,) and d2t.dtype in _INTEGERS:
        kept_ids = d2t.astype(np.int64) + np.arange(num_kept)
        if np.array_equal(np.flatnonzero(t2d), kept_ids):
            return kept_ids
    raise ModelFormatError(f"{source}: t2d and d2t do not map {num_kept} draft ids to target ids and back")


def require_layers(layers: Sequence[int], target: EmbeddedTarget, what: str, folder: Path) -> None:
    """Refuse layers that the target does not have.

    Raises:
        ModelError: a layer is outside 1..num_layers.
    """
    num_layers = target.config.num_layers
    wrong = [layer for layer in layers if not 1 <= layer <= num_layers]
    if wrong:
        raise ModelError(f"{folder / CONFIG_FILE}: {what} {wrong[0]} is outside the target's layers 1..{num_layers}")


def _require_shape(config: FolderConfig, target: EmbeddedTarget, folder: Path) -> None:
    trained_for, present = config.target_shape.model_dump(), TargetShape.of(target.config).model_dump()
    for name, wanted in trained_for.items():
        if present[name] != wanted:
            raise ModelError(
                f"{folder}: was trained for {config.speculators_config.verifier.name_or_path} with {name} {wanted}; "
                f"this target has {name} {present[name]}"
            )


def _probe(embedding_VD: Array) -> NDArray[np.float32]:
    """Evenly spread rows of the embedding."""
    rows = np.linspace(0, len(embedding_VD) - 1, _PROBE_ROWS, dtype=np.float32).astype(np.int64).tolist()
    found = embedding_VD[rows]
    return (as_array(found) if is_tensor(found) else found).astype(np.float32)


def _similarity(ours: NDArray[np.float32], theirs: NDArray[Any]) -> float:
    """Mean cosine of rows."""
    with np.errstate(over="ignore", invalid="ignore"):  # rows that are no numbers are like nothing
        theirs = theirs.astype(np.float32)
        lengths = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
        return float(np.mean((ours * theirs).sum(axis=-1) / np.maximum(lengths, _LEAST_LENGTH)))


def _read(path: Path, holds: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        msg = f"{path}: no such file; {holds}"
        raise ModelFormatError(msg) from error
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read ({error})") from error
