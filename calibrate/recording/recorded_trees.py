"""Heads and streams in a record: which nodes of the trees they draft hold the tokens of a text.

Shapes: N tokens of the text, P of the prompt; the others by the legend of `runtime.models.decoder`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.record import Ids, RecordedTree
from decoding.schedule import MAX_TREE, Method
from decoding.tree_shape import Path as TreePath
from decoding.tree_shape import cut
from runtime.backends.backend import Backend
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.hydra.drafter import HydraDrafter
from runtime.drafters.medusa.drafter import MedusaDrafter
from runtime.drafters.streams.drafter import StreamTree
from runtime.drafters.trees import places_along

TreeDrafter = EagleDrafter | HydraDrafter | MedusaDrafter | StreamTree
DynamicShape = tuple[int, int]
"""Depth of a dynamic tree, and the nodes that it expands on every level."""


class RecordedHead(NamedTuple):
    """A head of the target, or its streams, as a user calls it; the digest changes with its weights and its tree."""

    name: str
    drafter: TreeDrafter
    digest: str

    @property
    def layers(self) -> tuple[int, ...]:
        """Target layers whose states it reads."""
        if isinstance(self.drafter, StreamTree):
            return (self.drafter.start_layer,)
        return self.drafter.feature_layers

    def trees(self, shapes: Sequence[DynamicShape]) -> Iterator[RecordedTree]:
        """The trees to record: of these shapes if they are dynamic, else the head's own."""
        for method in _methods(self.drafter):
            if isinstance(self.drafter, EagleDrafter):
                for depth, top_k in shapes:
                    yield RecordedTree(method=method, drafter=self.name, depth=depth, top_k=top_k)
            else:
                paths: Sequence[TreePath] = self.drafter.paths
                depth = max(map(len, paths))
                paths = cut(paths, MAX_TREE, depth)
                yield RecordedTree(method=method, drafter=self.name, depth=depth, paths=paths)

    def ranks(
        self,
        trees: Sequence[RecordedTree],
        ids: Sequence[int],
        *,
        start: int,
        states: Mapping[int, Tensor],
        target: Backend,
    ) -> list[Ids]:
        """Places in the order of some trees of the nodes that hold the text, [N, depth] each, behind `start` tokens.

        `states` are the target's by layer, at all positions but the last, [P + N - 1, D].
        """
        drafter = self.drafter
        if isinstance(drafter, StreamTree):
            found = drafter.level_ranks(ids, start=start, x_TD=states[drafter.start_layer])
            return [places_along(found, tree.paths, tree.depth) for tree in trees]
        hidden_TED = torch.stack([states[layer] for layer in drafter.feature_layers], dim=1)
        features_TE = target.features(hidden_TED, is_raw=drafter.raw_features)
        if isinstance(drafter, EagleDrafter):
            shapes = [(tree.depth, tree.top_k) for tree in trees]
            return drafter.ranks_along(ids, start=start, features_TE=features_TE, shapes=shapes)
        return [drafter.ranks_along(ids, start=start, features_TE=features_TE, depth=tree.depth) for tree in trees]


def digest_of(folder: Path) -> str:
    """Changes with any file of a folder of weights."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _methods(drafter: TreeDrafter) -> tuple[Method, ...]:
    return ("speculative_streaming",) if isinstance(drafter, StreamTree) else drafter.methods
