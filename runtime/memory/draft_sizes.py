"""What drafters take of memory, from their folders: a function for each way to store one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Final

from decoding.errors import ModelFormatError
from decoding.files import parse_json
from runtime.backends.lane_device import Dtype
from runtime.memory.model_bytes import ITEM_BYTES, num_parameters, weight_bytes
from runtime.models.config import ModelConfig
from runtime.models.hf_config import read_object

_NO_WEIGHTS: Final = (".scale", "t2d", "d2t", "target_probe")
"""Ends of names of what trained folders hold besides (`runtime.storage`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftSize:
    """The size of a draft in memory.

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


Sizer = Callable[[Path, ModelConfig, Dtype, bool], DraftSize]
"""The size of a folder's drafter for a target, in a form of weights, and in the target's own lane or not."""


def whole_model_size(folder: Path, target: ModelConfig, dtype: Dtype, shares_lane: bool) -> DraftSize:  # noqa: ARG001, FBT001
    """Return the size of a model that has nothing of the target, exactly."""
    config = ModelConfig.from_folder(folder)
    return DraftSize(layers=config, num_outputs=config.vocab_size, weights=weight_bytes(config, dtype))


def trained_size(folder: Path, target: ModelConfig, dtype: Dtype, shares_lane: bool) -> DraftSize:  # noqa: FBT001
    """Return the size of a trained draft or head: an estimate by what its files hold, and rows of the target's head.

    In a lane of its own it loads the target's embedding and head too. Heads without layers of their own are counted as
    if they had one.

    Raises:
        ModelFormatError: a file of the folder cannot be read.
    """
    raw = read_object(folder / "config.json", holds="a drafter's folder holds config.json and its weights")
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
