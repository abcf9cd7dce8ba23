"""Drafters beside the draft model in a record: which nodes of their trees hold a text, and what search finds of it.

Shapes: N tokens of the text, P of the prompt; the others by the legend of `runtime.models.decoder`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decoding.record import Ids, RecordedChain, RecordedTree
from decoding.schedule import MAX_TREE, Method
from decoding.tree_shape import cut
from runtime.backends.backend import Backend
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.hydra import HydraDrafter
from runtime.drafters.medusa import MedusaDrafter
from runtime.drafters.prompt_lookup import PromptLookupDrafter
from runtime.drafters.streams import StreamTree
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
        drafter, streaming = self.drafter, ("speculative_streaming",)
        methods: tuple[Method, ...] = streaming if isinstance(drafter, StreamTree) else drafter.methods
        for method in methods:
            if isinstance(drafter, EagleDrafter):
                for depth, top_k in shapes:
                    yield RecordedTree(method=method, drafter=self.name, depth=depth, top_k=top_k)
            else:
                depth = max(map(len, drafter.paths))
                paths = cut(drafter.paths, MAX_TREE, depth)
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


class RecordedFinder(NamedTuple):
    """Prompt lookup as a user has set and called it; the digest changes with its settings."""

    name: str
    drafter: PromptLookupDrafter
    digest: str

    @property
    def chain(self) -> RecordedChain:
        """What a record calls its windows."""
        [method] = self.drafter.methods
        return RecordedChain(method=method, drafter=self.name)

    def windows(self, ids: Sequence[int], *, start: int, max_window: int) -> Ids:
        """What is found after every prefix ids[:start], ..., [N, max_window]; -1 after a window's end."""
        index = self.drafter.index()
        index.extend(ids[:start])
        windows = np.full((len(ids) - start, max_window), -1, dtype=np.int32)
        for row, token in zip(windows, ids[start:], strict=True):
            found = index.continuation(max_window)
            row[: len(found)] = found
            index.extend([token])
        return windows


def digest_of(folder: Path) -> str:
    """Changes with any file of a folder of weights."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
