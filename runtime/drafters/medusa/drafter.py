"""The drafter with Medusa heads: one step over one state drafts the whole tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoding.messages import NO_WINDOW
from decoding.schedule import MAX_TREE
from decoding.tree_shape import Path, cut
from runtime.drafters.head_drafter import HeadDrafter
from runtime.drafters.medusa.model import MedusaModel, PublishedMedusa
from runtime.drafters.trees import MOST_RANKS, Ranks, candidates_per_level, ranks_by_level, window_of
from runtime.drafters.window_drafter import Steps
from runtime.models.ranking import ranked_ids
from runtime.wire.measurement import Measurement


class MedusaDrafter(HeadDrafter):
    """Medusa heads, their tree, and the one state of the target that the next tree is drafted from."""

    methods = ("medusa",)

    def __init__(self, heads: MedusaModel | PublishedMedusa, paths: Sequence[Path], *, num_layers: int) -> None:
        """Args: the heads; nodes of the tree in their order; layers of the target."""
        super().__init__(paths, num_layers=num_layers)
        self.heads = heads
        self._feature_1D: Tensor | None = None

    def _read_prompt(self, prompt: Sequence[int], features_TE: Tensor, capacity: int) -> None:  # noqa: ARG002
        self.heads.output.add_prompt_tokens(prompt)
        # after a prompt of one token there is no state yet, and so no tree
        self._feature_1D = features_TE[-1:] if len(features_TE) else None

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """Draft a tree from the state that chose the last committed token (see `WindowDrafter`)."""
        if features_TE is not None and len(features_TE):
            self._feature_1D = features_TE[-1:]
        window = NO_WINDOW if self._feature_1D is None else window_of(self._tree, self._draft(self._feature_1D))
        yield max(len(committed), 1)
        return window

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:  # noqa: ARG002
        """Drafting the biggest tree of the heads: neither rows nor context make a difference."""
        weight = self.heads.target_norm
        self._counts = candidates_per_level(cut(self.paths, MAX_TREE, self.heads.num_heads))
        feature_1D = torch.randn(1, len(weight), dtype=weight.dtype)
        return lambda: self._draft(feature_1D)

    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """Every head's ranks along a text (see `HeadDrafter`)."""
        num_heads = self.heads.num_heads
        self.heads.output.add_prompt_tokens(ids[:start])

        def candidates_from(first: int) -> list[Tensor]:
            return self._candidates(features_TE[first - 2 : len(ids) - 2], (MOST_RANKS,) * num_heads)

        return ranks_by_level(ids, start, num_heads, candidates_from)

    def _draft(self, feature_1D: Tensor) -> list[list[int]]:
        return [candidates_1C[0].tolist() for candidates_1C in self._candidates(feature_1D, self._counts)]

    @torch.inference_mode()
    def _candidates(self, features_ND: Tensor, counts: Sequence[int]) -> list[Tensor]:
        logits = self.heads(features_ND * self.heads.target_norm, len(counts))
        ids = self.heads.output.ids
        return [ids[ranked_ids(logits_NV, count)] for logits_NV, count in zip(logits, counts, strict=True)]
