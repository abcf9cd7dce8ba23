"""What a draft lane runs for Hydra++ heads: the prefix layer over what was committed, then one step per level.

The first step reads the committed rows and drafts the root's children; every further one drafts the children of
all nodes of a level that have any. Shapes: legend of `runtime.trees.static_tree`, plus R nodes of a level, D hidden
size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.errors import LaneError
from decoding.messages import NO_WINDOW, Window
from decoding.schedule import MAX_TREE, Method, Schedule
from decoding.tree_shape import Path, cut, parents_of
from runtime.drafters.hydra.model import HydraModel
from runtime.drafters.window_drafter import Steps
from runtime.models.decoder import causal_mask
from runtime.models.kv_cache import KVCache
from runtime.models.masks import CausalMasks, prefill_pieces
from runtime.models.ranking import ranked_ids
from runtime.trees.static_tree import MOST_RANKS, Ranks, candidates_per_level, following, places_along, ranks_of
from runtime.verification.rules import GREEDY, Sampling


class HydraDrafter:
    """Hydra++ heads, their tree, and the keys and values of the prefix layer over the committed text.

    The candidates are the heads' best ids at any temperature: they stand before the target draws.
    """

    methods: tuple[Method, ...] = ("hydra",)
    raw_features = False

    def __init__(self, model: HydraModel, paths: Sequence[Path], *, num_layers: int) -> None:
        """Args: the heads; nodes of the tree in their order; layers of the target."""
        self.model = model
        self.paths = tuple(paths)
        self.feature_layers = (num_layers,)
        self.dtype = model.embedding_VD.dtype
        self.cache = KVCache(model.layer_config, 0, dtype=self.dtype)
        self._masks = CausalMasks(0, self.dtype)
        self._tree: tuple[Path, ...] = ()
        self._counts: tuple[int, ...] = ()
        self._inner: list[list[Path]] = []
        self._last_token = 0
        self._prefix_1D: Tensor | None = None

    def prefill(
        self,
        prompt: Sequence[int],
        *,
        schedule: Schedule,
        capacity: int,
        sampling: Sampling = GREEDY,  # noqa: ARG002
        features_TE: Tensor | None = None,
    ) -> None:
        """Start a sequence: run the prefix layer over the target's states (see `WindowDrafter`).

        Raises:
            LaneError: there are no features.
        """
        if features_TE is None:
            raise LaneError("Hydra heads cannot draft without the target's features")
        self.model.output.add_prompt_tokens(prompt)
        self._reserve(capacity)
        self.cache.set_length(0)
        self._set_tree(schedule.tree_size, schedule.num_speculative_tokens)
        self._last_token, self._prefix_1D = prompt[-1], None
        for start, stop, mask in prefill_pieces(len(features_TE), self.dtype):
            self._read(features_TE[start:stop], mask)

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """Draft a tree behind the committed text, level by level (see `WindowDrafter`)."""
        if features_TE is not None and len(features_TE):
            self._last_token = committed[-1]
            self._read(features_TE, self._masks.behind(self.cache.cursor, len(features_TE)))
        if self._prefix_1D is None:
            # behind a prompt of one token there is no state yet, and so no tree
            yield max(len(committed), 1)
            return NO_WINDOW
        tokens: dict[Path, int] = {(): self._last_token}
        for level, inner in enumerate(self._inner):
            self._extend(tokens, inner, self._prefix_1D, self._counts[level])
            yield len(inner) if level else max(len(committed), 1)
        return Window(tuple(tokens[path] for path in self._tree), parents=parents_of(self._tree))

    def measure_step(self, rows: int, context: int) -> Callable[[], object]:
        """The prefix layer over so many rows, then the children of as many nodes.

        No step does both in full: the first reads rows for one node, the others leave the prefix layer out.
        """
        size = len(self.model.target_norm)
        self._reserve(context + rows)
        self.cache.fill_random(context)
        features_TD = torch.randn(rows, size, dtype=self.dtype)
        ids_R1 = torch.randint(len(self.model.embedding_VD), (rows, 1))
        mask = None if rows == 1 else causal_mask(rows, self.dtype, context=context)

        def step() -> Tensor:
            prefix_1D = self._read(features_TD, mask)
            self.cache.set_length(context)
            return self._candidates(prefix_1D.expand(rows, -1), ids_R1, MOST_RANKS)

        return step

    def _reserve(self, num_slots: int) -> None:
        """Room in the cache, and masks that reach as far."""
        if self.cache.capacity < num_slots:
            self.cache = KVCache(self.model.layer_config, num_slots, dtype=self.dtype)
            self._masks = CausalMasks(num_slots, self.dtype)

    @torch.inference_mode()
    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """For each place from `start` on, and each head, the rank of the text's token among its best, [N, K].

        Each head is given the text's own tokens: what it says below nodes that stand for the text.

        Args:
            ids: a text.
            start: first place that is drafted for: all before it is the prompt.
            features_TE: the target's features, for at least `len(ids)` - 2 positions.

        Returns:
            -1 where the token is not among the `MOST_RANKS` best, or behind the text.
        """
        num_heads, count = self.model.config.num_heads, len(ids) - 2
        self.model.output.add_prompt_tokens(ids[:start])
        wanted_NK = following(ids, start, num_heads)
        ranks_NK = torch.full_like(wanted_NK, -1)
        first = max(start, 2)
        if first >= len(ids):
            return ranks_NK.numpy().astype(np.int32)
        prefix_TD = self.model.read_prefix(
            (features_TE[:count] * self.model.target_norm)[None],
            positions=torch.arange(count),
            mask=causal_mask(count, self.dtype),
        )[0]
        # row i: the token before place i, then those that the deeper heads see
        seen_NK = torch.tensor([*ids[first - 1 :], *[0] * num_heads]).unfold(0, num_heads, 1)[: len(ids) - first]
        for level in range(num_heads):
            candidates_NC = self._candidates(prefix_TD[first - 2 :], seen_NK[:, : level + 1], MOST_RANKS)
            ranks_NK[first - start :, level] = ranks_of(candidates_NC, wanted_NK[first - start :, level])
        return ranks_NK.numpy().astype(np.int32)

    def ranks_along(self, ids: Sequence[int], *, start: int, features_TE: Tensor, depth: int) -> Ranks:
        """Places in the tree's order of the nodes that stand for a text, [N, depth] (`AcceptanceRecord`)."""
        ranks = self.level_ranks(ids, start=start, features_TE=features_TE)
        return places_along(ranks, cut(self.paths, MAX_TREE, depth), depth)

    def _set_tree(self, size: int, depth: int) -> None:
        """Settle the tree that is drafted from now on."""
        self._tree = cut(self.paths, size, depth)
        self._counts = candidates_per_level(self._tree)
        inner = dict.fromkeys(path[:-1] for path in self._tree)
        self._inner = [[path for path in inner if len(path) == level] for level in range(len(self._counts))]

    @torch.inference_mode()
    def _read(self, features_TD: Tensor, mask: Tensor | None) -> Tensor:
        """Run the prefix layer over the next committed positions; h' of the last of them, [1, D]."""
        start, count = self.cache.cursor, len(features_TD)
        prefix_BTD = self.model.read_prefix(
            (features_TD * self.model.target_norm)[None],
            positions=torch.arange(start, start + count),
            mask=mask,
            cache=self.cache,
        )
        self.cache.advance(count)
        self._prefix_1D = prefix_BTD[0, -1:]
        return self._prefix_1D

    def _extend(self, tokens: dict[Path, int], inner: Sequence[Path], prefix_1D: Tensor, count: int) -> None:
        """Add the children of a level's nodes; those beyond the tree are never looked up."""
        seen = [[tokens[path[:length]] for length in range(len(path) + 1)] for path in inner]
        candidates_RC = self._candidates(prefix_1D.expand(len(inner), -1), torch.tensor(seen), count)
        for path, candidates in zip(inner, candidates_RC.tolist(), strict=True):
            tokens |= {(*path, rank): token for rank, token in enumerate(candidates)}

    @torch.inference_mode()
    def _candidates(self, prefix_RD: Tensor, seen_RL: Tensor, count: int) -> Tensor:
        """Best target ids behind the tokens seen since the state, [R, C]; the last of them in the last column."""
        tokens = [self.model.embed(ids_R) for ids_R in reversed(seen_RL.unbind(1))]
        output = self.model.output
        return output.ids[ranked_ids(output.logits(self.model(prefix_RD, tokens)), count)]
