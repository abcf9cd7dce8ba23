"""The drafter with Hydra++ heads: the prefix layer over committed tokens, then one step per level.

The first step reads the committed rows and drafts the root's children; every further one drafts the children of all
nodes of a level that have any. Shapes: legend of `runtime.drafters.trees`, plus R nodes of a level, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from decoding.messages import NO_WINDOW, Window
from decoding.tree_shape import Path as TreePath
from decoding.tree_shape import parents_of
from runtime.drafters.head_drafter import HeadDrafter
from runtime.drafters.hydra.model import HydraConfig, HydraModel
from runtime.drafters.trees import MOST_RANKS, Ranks, ranks_by_level
from runtime.drafters.window_drafter import Steps
from runtime.models.decoder import Decoder, causal_mask
from runtime.models.kv_cache import KVCache
from runtime.models.masks import prefill_pieces
from runtime.models.vocabulary import ranked_ids
from runtime.storage.head_folder import TreeFolderConfig, load_tree_heads, save_tree_heads
from runtime.storage.weight_folder import Count, Width
from runtime.wire.measurement import Measurement


class HydraDrafter(HeadDrafter):
    """Hydra++ heads, their tree, and the keys and values of the prefix layer over the committed text."""

    methods = ("hydra",)

    def __init__(self, model: HydraModel, paths: Sequence[TreePath], *, num_layers: int) -> None:
        """Args: the heads; nodes of the tree in their order; layers of the target."""
        super().__init__(paths, num_layers=num_layers)
        self.model = model
        self.dtype = model.embedding_VD.dtype
        self.cache = KVCache(model.layer_config, 0, dtype=self.dtype)
        self._inner: list[list[TreePath]] = []
        self._last_token = 0
        self._prefix_1D: Tensor | None = None

    def _read_prompt(self, prompt: Sequence[int], features_TE: Tensor, capacity: int) -> None:
        self.model.output.add_prompt_tokens(prompt)
        self.cache.start(capacity)
        self._last_token, self._prefix_1D = prompt[-1], None
        for start, stop in prefill_pieces(len(features_TE)):
            self._read(features_TE[start:stop])

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """Draft a tree after the committed text, level by level (see `WindowDrafter`)."""
        if features_TE is not None and len(features_TE):
            self._last_token = committed[-1]
            self._read(features_TE)
        if self._prefix_1D is None:
            # after a prompt of one token there is no state yet, and so no tree
            yield max(len(committed), 1)
            return NO_WINDOW
        tokens: dict[TreePath, int] = {(): self._last_token}
        for level, inner in enumerate(self._inner):
            self._extend(tokens, inner, self._prefix_1D, self._counts[level])
            yield len(inner) if level else max(len(committed), 1)
        return Window(tuple(tokens[path] for path in self._tree), parents=parents_of(self._tree))

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """Return a step of the prefix layer over so many rows and the children of as many nodes: more than any real."""
        rows, context = measurement.rows, measurement.context
        size = len(self.model.target_norm)
        self.cache.start(context + rows)
        self.cache.fill_random(context)
        features_TD = torch.randn(rows, size, dtype=self.dtype)
        ids_R1 = torch.randint(len(self.model.embedding_VD), (rows, 1))

        def step() -> Tensor:
            prefix_1D = self._read(features_TD)
            self.cache.set_length(context)
            return self._candidates(prefix_1D.expand(rows, -1), ids_R1, MOST_RANKS)

        return step

    @torch.inference_mode()
    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """Every head's ranks along a text, whose own tokens each is given (see `HeadDrafter`)."""
        num_heads = self.model.config.num_heads
        self.model.output.add_prompt_tokens(ids[:start])

        def candidates_from(first: int) -> Iterator[Tensor]:
            count = len(ids) - 2
            prefix_TD = self.model.read_prefix(
                (features_TE[:count] * self.model.target_norm)[None],
                positions=torch.arange(count),
                mask=causal_mask(count, self.dtype),
            )[0]
            # row i: the token before place i, then those that the deeper heads see
            seen_NK = torch.tensor([*ids[first - 1 :], *[0] * num_heads]).unfold(0, num_heads, 1)[: len(ids) - first]
            for level in range(num_heads):
                yield self._candidates(prefix_TD[first - 2 :], seen_NK[:, : level + 1], MOST_RANKS)

        return ranks_by_level(ids, start, num_heads, candidates_from)

    def _set_tree(self, size: int, depth: int) -> None:
        super()._set_tree(size, depth)
        inner = dict.fromkeys(path[:-1] for path in self._tree)
        self._inner = [[path for path in inner if len(path) == level] for level in range(len(self._counts))]

    @torch.inference_mode()
    def _read(self, features_TD: Tensor) -> Tensor:
        """Run the prefix layer over the next committed positions, and return h' of the last one [1, D]."""
        start, count = self.cache.cursor, len(features_TD)
        prefix_BTD = self.model.read_prefix(
            (features_TD * self.model.target_norm)[None],
            positions=torch.arange(start, start + count),
            mask=None,
            cache=self.cache,
        )
        self.cache.advance(count)
        self._prefix_1D = prefix_BTD[0, -1:]
        return self._prefix_1D

    def _extend(self, tokens: dict[TreePath, int], inner: Sequence[TreePath], prefix_1D: Tensor, count: int) -> None:
        seen = [[tokens[path[:length]] for length in range(len(path) + 1)] for path in inner]
        candidates_RC = self._candidates(prefix_1D.expand(len(inner), -1), torch.tensor(seen), count)
        for path, candidates in zip(inner, candidates_RC.tolist(), strict=True):
            tokens |= {(*path, rank): token for rank, token in enumerate(candidates)}

    @torch.inference_mode()
    def _candidates(self, prefix_RD: Tensor, seen_RL: Tensor, count: int) -> Tensor:
        """Return the best target ids [R, C] after the tokens since the state, the last of them in the last column."""
        tokens = [self.model.embed(ids_R) for ids_R in reversed(seen_RL.unbind(1))]
        output = self.model.output
        return output.ids[ranked_ids(output.logits(self.model(prefix_RD, tokens)), count)]  # type: ignore[no-any-return]


class HydraFolderConfig(TreeFolderConfig):
    """`config.json` of Hydra++ heads."""

    speculators_model_type: Literal["mirrorsd_hydra"] = "mirrorsd_hydra"
    num_heads: Count
    prefix_width: Width
    head_width: Width
    shared_widths: Annotated[tuple[Width, ...], Field(max_length=64)]


save_hydra = partial(save_tree_heads, HydraFolderConfig)
"""Write trained heads (`save_tree_heads`)."""


def load_hydra(folder: Path, target: Decoder, *, dtype: torch.dtype) -> HydraDrafter:
    """Return the drafter of a folder of heads, in `dtype` and on the target's device."""

    def build(config: HydraFolderConfig) -> HydraModel:
        return HydraModel(target.config, config.sizes(HydraConfig))

    return load_tree_heads(folder, HydraFolderConfig, target, build, HydraDrafter, dtype=dtype)
