"""Every kind of folder with trained weights: how its weights are made, saved and loaded."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from runtime.drafters.eagle.folder import load_eagle1, load_eagle3, save_eagle
from runtime.drafters.head_drafter import save_tree_heads
from runtime.drafters.hydra import HydraFolderConfig, load_hydra
from runtime.drafters.language_model.folder import load_draft, save_draft
from runtime.drafters.medusa import MedusaFolderConfig, load_medusa
from runtime.drafters.streams import StreamFolderConfig, load_streams
from runtime.target.early_exits import ExitHeads, load_exits, save_exits
from tests.tiny_eagle import tiny_eagle1, tiny_eagle3
from tests.tiny_heads import KEPT, PATHS, tiny_hydra, tiny_medusa
from tests.tiny_models import tiny_adapters, tiny_draft, tiny_streams

LAYERS = (1, 2, 3)
STREAM_PATHS = ((0,), (1,), (0, 0), (0, 0, 1))
METADATA = {"seed": 7}
FACTS = {"target_name": "tiny-target", "metadata": METADATA}


class Kind(NamedTuple):
    """How weights of a kind are made, saved and loaded."""

    make: Callable[..., Any]
    save: Callable[..., None]
    load: Callable[..., Any]
    """Of folder, target and dtype."""
    module: Callable[[Any], Any]
    """The module in what was loaded."""
    fields: dict[str, Any]
    """Of the config, besides those of every kind."""
    missing: str
    """A tensor of every such folder."""


def _exits(target):
    return ExitHeads(adapters=tiny_adapters(target, (3, 1)), kept_ids=KEPT)


def as_module(exits):
    return torch.nn.ModuleDict({str(layer): adapter for layer, adapter in exits.adapters.items()})


def _save_exits(exits, folder, target):
    save_exits(exits, folder, target=target, **FACTS)


def _save_heads(kind):
    def write(heads, folder, target, *, paths=PATHS):
        save_tree_heads(kind, heads, paths, folder, target=target, **FACTS)

    return write


def _save_eagle(head, folder, _target, *, feature_layers=LAYERS):
    save_eagle(head, folder, feature_layers=feature_layers, **FACTS)


def _save_streams(streams, folder, target, *, paths=STREAM_PATHS, kept_ids=KEPT):
    save_tree_heads(StreamFolderConfig, streams, paths, folder, kept_ids=kept_ids, target=target, **FACTS)


def _save_draft(draft, folder, _target):
    save_draft(draft, folder, **FACTS)


def _load_streams(folder, target, *, dtype):
    return load_streams(folder, target.to(dtype))


_TREE = {"paths": [list(path) for path in PATHS]}
KINDS = {
    "draft": Kind(
        lambda target: tiny_draft(target, exit_features=(1, 3), feature_layer=1),
        _save_draft,
        load_draft,
        lambda draft: draft,
        {"exit_features": [1, 3], "source_layers": [1, 2, 4], "quantization_format": "int8-symmetric-per-row"},
        "fuse.weight",
    ),
    "medusa": Kind(
        tiny_medusa,
        _save_heads(MedusaFolderConfig),
        load_medusa,
        lambda drafter: drafter.model,
        _TREE,
        "heads.0.blocks.0.bias",
    ),
    "hydra": Kind(
        tiny_hydra, _save_heads(HydraFolderConfig), load_hydra, lambda drafter: drafter.model, _TREE, "own.0.up.bias"
    ),
    "eagle1": Kind(tiny_eagle1, _save_eagle, load_eagle1, lambda drafter: drafter.head, {}, "fuse.weight"),
    "eagle3": Kind(
        tiny_eagle3,
        _save_eagle,
        load_eagle3,
        lambda drafter: drafter.head,
        {"feature_layers": [1, 2, 3]},
        "fuse.weight",
    ),
    "streams": Kind(
        tiny_streams,
        _save_streams,
        _load_streams,
        lambda tree: tree.model,
        {"num_streams": 3, "start_layer": 2, "rank": 2, "paths": [list(path) for path in STREAM_PATHS]},
        "embedding",
    ),
    "exits": Kind(_exits, _save_exits, load_exits, as_module, {"exit_layers": [1, 3]}, "1.norm"),
}


def save_head(kind, target, folder, *, sizes=None, **how):
    """Write the folder of a tiny head or of streams: of those sizes, saved so (`paths`, `feature_layers`)."""
    KINDS[kind].save(KINDS[kind].make(target, **sizes or {}), folder, target, **how)
