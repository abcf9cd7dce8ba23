"""The models of a calibration: the configurations in their folders, and the bytes that each part reads."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self, TypeVar

from decoding.errors import ModelFormatError
from decoding.validation import errors_as
from hwprofiles.lane_profile import LanePart
from runtime.drafters.language_model.folder import DrafterFolderConfig
from runtime.drafters.registry import CAUSAL_LM_KIND, kind_of
from runtime.models.config import ModelConfig
from runtime.target.early_exits import ExitFolderConfig

C = TypeVar("C", DrafterFolderConfig, ExitFolderConfig)

_LAYER_BYTES: Final = {"bfloat16": 2.0, "float32": 4.0, "int8": 1.0, "int4": 0.5}
"""Bytes of one weight in layers, by weight format."""
_HEAD_BYTES: Final = _LAYER_BYTES | {"int4": 1.0}
"""Bytes of one weight in an `lm_head`, by weight format."""
_STATE_BYTES: Final = {"float32": 4}
"""Bytes of an element of keys, values, hidden states and adapters, by weight format; 2 for other formats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """Sizes of the target, its draft and its exits; `dtype` is the weight format.

    `draft`: trained for the target (`DrafterFolderConfig`) or a separate model. `exits`: trained adapters; None: exits
    are read by the target's norm and `lm_head`.
    """

    config: ModelConfig
    draft: DrafterFolderConfig | ModelConfig | None
    exits: ExitFolderConfig | None
    dtype: str

    @classmethod
    def of(cls, config: ModelConfig, drafter_folder: Path | None, exits_folder: Path | None, dtype: str) -> Self:
        """Read the configurations in the folders; raises `ModelFormatError` if one is wrong."""
        return cls(
            config=config,
            draft=None if drafter_folder is None else _draft(drafter_folder),
            exits=None if exits_folder is None else _read(exits_folder, ExitFolderConfig),
            dtype=dtype,
        )

    @property
    def feature_width(self) -> int:
        """Elements of a row's exit features; 0 for a draft without features."""
        trained = self.draft if isinstance(self.draft, DrafterFolderConfig) else None
        return len(trained.exit_features) * self.config.hidden_size if trained else 0

    @property
    def num_draft_streams(self) -> int:
        """Number of streams of the draft; 0 without streams."""
        streams = self.draft.streams if isinstance(self.draft, DrafterFolderConfig) else None
        return 0 if streams is None else streams.num_streams

    @property
    def features_bytes_per_row(self) -> int:
        """Bytes of a row's exit features."""
        return self.feature_width * self._state_bytes

    def part_bytes(self, context: int) -> dict[LanePart, float]:
        """Return the bytes that a call with one row reads, by part; 0 for parts of a missing draft."""
        config, draft, exits = self.config, self.draft, self.exits
        hidden = config.hidden_size
        layer, lm_head = self._layer_bytes(config, context), self._head_bytes(config.vocab_size, hidden)
        exit_ = lm_head
        if exits is not None:
            adapter = hidden * (hidden + 2 * exits.width) * self._state_bytes
            exit_ = self._head_bytes(exits.draft_vocab_size, hidden) + adapter
        step = 0.0
        if isinstance(draft, DrafterFolderConfig):
            step = len(draft.source_layers) * layer + self._head_bytes(draft.draft_vocab_size, hidden)
        elif draft is not None:
            head = self._head_bytes(draft.vocab_size, draft.hidden_size)
            step = draft.num_layers * self._layer_bytes(draft, context) + head
        steps: dict[LanePart, float] = dict.fromkeys(("draft_step", "draft_step_features", "draft_start"), step)
        return {"layer": layer, "lm_head": lm_head, "exit": exit_, **steps}

    def without_draft_streams(self) -> Self:
        """Return the sizes without the draft's streams, for lanes that cannot run them."""
        if not isinstance(self.draft, DrafterFolderConfig):
            return self
        return replace(self, draft=self.draft.model_copy(update={"streams": None}))

    @property
    def _state_bytes(self) -> int:
        return _STATE_BYTES.get(self.dtype, 2)

    def _layer_bytes(self, config: ModelConfig, context: int) -> float:
        keys_values = 2 * config.num_kv_heads * config.head_dim * context
        return config.num_layer_parameters * _LAYER_BYTES[self.dtype] + keys_values * self._state_bytes

    def _head_bytes(self, num_outputs: int, hidden_size: int) -> float:
        return num_outputs * hidden_size * _HEAD_BYTES[self.dtype]


def _draft(folder: Path) -> DrafterFolderConfig | ModelConfig:
    if kind_of(folder) == CAUSAL_LM_KIND:
        return ModelConfig.from_folder(folder)
    return _read(folder, DrafterFolderConfig)


def _read(folder: Path, kind: type[C]) -> C:
    path = folder / "config.json"
    what = kind.__name__.removesuffix("FolderConfig").lower()
    with errors_as(ModelFormatError, f"{path}: not the configuration of a {what}"):
        return kind.model_validate_json(path.read_bytes())
