"""What the models of a calibration are: their folders' configurations, and how many bytes a part reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from pydantic import ValidationError

from decoding.errors import ModelFormatError
from runtime.drafters.language_model.folder import DrafterFolderConfig
from runtime.drafters.registry import CAUSAL_LM_KIND, kind_of
from runtime.models.config import ModelConfig
from runtime.target.exit_folder import ExitFolderConfig

C = TypeVar("C", DrafterFolderConfig, ExitFolderConfig)

_ITEM_BYTES: Final = {"bfloat16": 2, "float32": 4, "int8": 1}
"""Of weights; keys and values of int8 weights are bfloat16, and few next to them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartBytes:
    """Weights and keys and values that one call of a part reads; zero for a model that is not there."""

    layer: float
    lm_head: float
    exit: float
    draft_step: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """Shapes of the target, its draft and its exits.

    Attributes:
        config: the target's.
        draft: one trained for the target, or a model of its own; None without one.
        exits: None where exits are read by the target's final norm and head alone.
        dtype: of weights and caches.
    """

    config: ModelConfig
    draft: DrafterFolderConfig | ModelConfig | None
    exits: ExitFolderConfig | None
    dtype: str

    @classmethod
    def of(cls, config: ModelConfig, drafter_folder: Path | None, exits_folder: Path | None, dtype: str) -> Self:
        """Read the configurations of the folders.

        Raises:
            ModelFormatError: a folder is not what it should be.
        """
        return cls(
            config=config,
            draft=None if drafter_folder is None else _draft(drafter_folder),
            exits=None if exits_folder is None else _read(exits_folder, ExitFolderConfig),
            dtype=dtype,
        )

    @property
    def feature_width(self) -> int:
        """Numbers that a row's exit features hold; 0 for a draft without."""
        trained = self.draft if isinstance(self.draft, DrafterFolderConfig) else None
        return len(trained.exit_features) * self.config.hidden_size if trained else 0

    @property
    def num_draft_streams(self) -> int:
        """Streams inside the draft; 0 without."""
        streams = self.draft.streams if isinstance(self.draft, DrafterFolderConfig) else None
        return 0 if streams is None else streams.num_streams

    @property
    def features_bytes_per_row(self) -> int:
        """Bytes of them."""
        return self.feature_width * self._item_bytes

    def part_bytes(self, context: int) -> PartBytes:
        """Traffic of one call of every part at one row."""
        config, draft, exits = self.config, self.draft, self.exits
        hidden = config.hidden_size
        layer = _layer_values(config, context)
        head = config.vocab_size * hidden
        exit_ = head if exits is None else exits.draft_vocab_size * hidden + hidden * (hidden + 2 * exits.width)
        step = 0
        if isinstance(draft, DrafterFolderConfig):
            step = len(draft.source_layers) * layer + draft.draft_vocab_size * hidden
        elif draft is not None:
            step = draft.num_layers * _layer_values(draft, context) + draft.vocab_size * draft.hidden_size
        return PartBytes(
            layer=layer * self._item_bytes,
            lm_head=head * self._item_bytes,
            exit=exit_ * self._item_bytes,
            draft_step=step * self._item_bytes,
        )

    @property
    def _item_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype]


def _layer_values(config: ModelConfig, context: int) -> int:
    """Weights of a layer, and keys and values in its cache."""
    return config.num_layer_parameters + 2 * config.num_kv_heads * config.head_dim * context


def _draft(folder: Path) -> DrafterFolderConfig | ModelConfig:
    if kind_of(folder) == CAUSAL_LM_KIND:
        return ModelConfig.from_folder(folder)
    return _read(folder, DrafterFolderConfig)


def _read(folder: Path, kind: type[C]) -> C:
    path = folder / "config.json"
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        msg = f"{path}: not the configuration of a {kind.__name__.removesuffix('FolderConfig').lower()} ({error})"
        raise ModelFormatError(msg) from error
