"""What a draft lane runs for Medusa heads: one step over one state drafts the whole tree.

Shapes: legend of `runtime.trees.static_tree`, plus V kept ids, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from decoding.errors import LaneError
from decoding.messages import NO_WINDOW
from decoding.schedule import MAX_TREE, Method, Schedule
from decoding.tree_shape import Path, cut
from runtime.drafters.window_drafter import Steps
from runtime.models.ranking import ranked_ids
from runtime.trees.static_tree import (
    MOST_RANKS,
    Ranks,
    candidates_per_level,
    following,
    places_along,
    ranks_of,
    window_of,
)
from runtime.verification.rules import GREEDY, Sampling


class MedusaHeads(Protocol):
    """Heads on the target's normalised last hidden state."""

    @property
    def ids(self) -> Tensor:
        """Target ids of their logits, [V]."""
        ...

    def add_prompt_tokens(self, prompt: Sequence[int], /) -> None:
        """Propose the tokens of this prompt too, if the vocabulary is a reduced one."""
        ...

    @property
    def target_norm(self) -> Tensor:
        """Weight of the target's final norm, [D]."""
        ...

    @property
    def num_heads(self) -> int:
        """Heads there are: the depth of the deepest tree."""
        ...

    def __call__(self, x_MD: Tensor, num_heads: int) -> list[Tensor]:
        """Logits of the first heads, [M, V] each."""
        ...


class MedusaDrafter:
    """Medusa heads, their tree, and the one state of the target that the next tree is drafted from.

    The candidates are the heads' best ids at any temperature: they stand before the target draws.
    """

    methods: tuple[Method, ...] = ("medusa",)
    raw_features = False

    def __init__(self, heads: MedusaHeads, paths: Sequence[Path], *, num_layers: int) -> None:
        """Args: the heads; nodes of the tree in their order; layers of the target."""
        self.heads = heads
        self.paths = tuple(paths)
        self.feature_layers = (num_layers,)
        self._tree: tuple[Path, ...] = ()
        self._counts: tuple[int, ...] = ()
        self._feature_1D: Tensor | None = None

    def prefill(
        self,
        prompt: Sequence[int],
        *,
        schedule: Schedule,
        capacity: int,  # noqa: ARG002
        sampling: Sampling = GREEDY,  # noqa: ARG002
        features_TE: Tensor | None = None,
    ) -> None:
        """Start a sequence: all that the heads need of it is its tokens and last state (see `WindowDrafter`).

        Raises:
            LaneError: there are no features.
        """
        if features_TE is None:
            raise LaneError("Medusa heads cannot draft without the target's features")
        self.heads.add_prompt_tokens(prompt)
        self._tree = cut(self.paths, schedule.tree_size, schedule.num_speculative_tokens)
        self._counts = candidates_per_level(self._tree)
        # behind a prompt of one token there is no state yet, and so no tree
        self._feature_1D = features_TE[-1:] if len(features_TE) else None

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """Draft a tree from the state that chose the last committed token (see `WindowDrafter`)."""
        if features_TE is not None and len(features_TE):
            self._feature_1D = features_TE[-1:]
        window = NO_WINDOW if self._feature_1D is None else window_of(self._tree, self._draft(self._feature_1D))
        yield max(len(committed), 1)
        return window

    def measure_step(self, rows: int, context: int) -> Callable[[], object]:  # noqa: ARG002
        """Drafting the biggest tree of the heads: neither rows nor context make a difference."""
        weight = self.heads.target_norm
        self._counts = candidates_per_level(cut(self.paths, MAX_TREE, self.heads.num_heads))
        feature_1D = torch.randn(1, len(weight), dtype=weight.dtype)
        return lambda: self._draft(feature_1D)

    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """For each place from `start` on, and each head, the rank of the text's token among its best, [N, K].

        Args:
            ids: a text.
            start: first place that is drafted for: all before it is the prompt.
            features_TE: the target's features, for at least `len(ids)` - 2 positions.

        Returns:
            -1 where the token is not among the `MOST_RANKS` best, or behind the text.
        """
        num_heads = self.heads.num_heads
        self.heads.add_prompt_tokens(ids[:start])
        wanted_NK = following(ids, start, num_heads)
        ranks_NK = torch.full_like(wanted_NK, -1)
        first = max(start, 2)
        candidates = self._candidates(features_TE[first - 2 : len(ids) - 2], (MOST_RANKS,) * num_heads)
        for level, candidates_NC in enumerate(candidates):
            ranks_NK[first - start :, level] = ranks_of(candidates_NC, wanted_NK[first - start :, level])
        return ranks_NK.numpy().astype(np.int32)

    def ranks_along(self, ids: Sequence[int], *, start: int, features_TE: Tensor, depth: int) -> Ranks:
        """Places in the tree's order of the nodes that stand for a text, [N, depth] (`AcceptanceRecord`)."""
        ranks = self.level_ranks(ids, start=start, features_TE=features_TE)
        return places_along(ranks, cut(self.paths, MAX_TREE, depth), depth)

    def _draft(self, feature_1D: Tensor) -> list[list[int]]:
        """Best ids of every level of the tree."""
        return [candidates_1C[0].tolist() for candidates_1C in self._candidates(feature_1D, self._counts)]

    @torch.inference_mode()
    def _candidates(self, features_ND: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """The best target ids of every head, as many as asked for, [N, C] each."""
        logits = self.heads(features_ND * self.heads.target_norm, len(counts))
        ids = self.heads.ids
        return [ids[ranked_ids(logits_NV, count)] for logits_NV, count in zip(logits, counts, strict=True)]
