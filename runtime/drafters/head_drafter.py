"""The base of Medusa and Hydra drafters: heads on the target's last state that draft the same tree at every step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoding.errors import LaneError
from decoding.schedule import MAX_TREE, Schedule
from decoding.tree_shape import Path, cut
from runtime.drafters.trees import Ranks, candidates_per_level, places_along
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.decoder import Decoder
from runtime.models.vocabulary import OutputRows, all_ids


class HeadDrafter(WindowDrafter):
    """A drafter with a static tree of its heads' best ids at any temperature, fixed before the target draws."""

    def __init__(self, paths: Sequence[Path], *, num_layers: int) -> None:
        """Args: nodes of the tree in their order; layers of the target."""
        self.paths = tuple(paths)
        self.feature_layers = (num_layers,)
        self._tree: tuple[Path, ...] = ()
        self._counts: tuple[int, ...] = ()

    @abstractmethod
    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """Return every head's ranks along a sequence (`ranks_by_level`), [N, K]; two positions need no features."""

    def ranks_along(self, ids: Sequence[int], *, start: int, features_TE: Tensor, depth: int) -> Ranks:
        """Return places in the tree's order of the nodes that a sequence follows, [N, depth] (`AcceptanceRecord`)."""
        ranks = self.level_ranks(ids, start=start, features_TE=features_TE)
        return places_along(ranks, cut(self.paths, MAX_TREE, depth), depth)

    def prefill(
        self, prompt: Sequence[int], *, schedule: Schedule, capacity: int, features_TE: Tensor | None = None, **_: Any
    ) -> None:
        """Start a sequence with the tree that its schedule asks for (see `WindowDrafter`)."""
        if features_TE is None:
            raise LaneError(f"{self.methods[0].capitalize()} heads cannot draft without the target's features")
        self._set_tree(schedule.tree_size, schedule.num_speculative_tokens)
        self._read_prompt(prompt, features_TE, capacity)

    @abstractmethod
    def _read_prompt(self, prompt: Sequence[int], features_TE: Tensor, capacity: int) -> None:
        """Read a prompt and the target's features of all its positions but the last."""

    def _set_tree(self, size: int, depth: int) -> None:
        self._tree = cut(self.paths, size, depth)
        self._counts = candidates_per_level(self._tree)


class KeptRowHeads(nn.Module):
    """Heads that read out through rows of the target's: `output` has kept ones, and those of a prompt that is added."""

    kept_ids: Tensor
    head_VD: Tensor
    target_norm: Tensor

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("kept_ids", all_ids(vocab_size), persistent=False)
        self.register_buffer("head_VD", torch.zeros(vocab_size, hidden_size), persistent=False)
        self.register_buffer("target_norm", torch.ones(hidden_size), persistent=False)
        self.output = OutputRows(self.kept_ids, self.head_VD)

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """Use the target's final norm and the kept rows of its output head, which stay as they are."""
        head_VD, self.kept_ids = target.lm_head.weight.detach(), kept_ids
        self.head_VD, self.target_norm = head_VD[kept_ids], target.final_norm.detach()
        self.output = OutputRows(kept_ids, self.head_VD, head_VD)
