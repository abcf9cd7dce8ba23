"""The drafter with an EAGLE head: committed tokens with the target's features, then a dynamic tree with its own.

A rollout's first step feeds the tokens committed since the last one, each with the target's feature of the position
before; every later step feeds the nodes of one level with the head's own. An accepted node is fed again.
Shapes: legend of `runtime.drafters.eagle.model`, plus N places of a text, P trees of a call, R nodes of a level, F
nodes fed, S slots.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoding.schedule import Method, Schedule
from runtime.backends.backend import prefill_pieces
from runtime.drafters.eagle.model import EagleHead
from runtime.drafters.head_drafter import FeatureDrafter
from runtime.drafters.trees import GrowingTree
from runtime.drafters.window_drafter import Steps
from runtime.models.kv_cache import KVCache
from runtime.models.vocabulary import ranked_ids
from runtime.wire.measurement import Measurement


class EagleDrafter(FeatureDrafter):
    """An EAGLE head and its sequence; candidates are its best ids at any temperature, fixed before the target draws."""

    def __init__(
        self, head: EagleHead, *, method: Method, feature_layers: tuple[int, ...], raw_features: bool = False
    ) -> None:
        self.head, self.feature_layers, self.raw_features = head, feature_layers, raw_features
        self.methods = (method,)
        self.dtype, self.device = head.layer.qkv.weight.dtype, head.layer.qkv.weight.device
        self.hidden_size = head.config.hidden_size
        self.cache = KVCache(head.config, 0, dtype=self.dtype, device=str(self.device))
        self._depth = self._size = self._top_k = 0
        self._first_position = 1
        # the tokens of the last rollout's first step, with their features, and the slots before them
        self._last: tuple[Sequence[int], Tensor] = ((), torch.zeros(0, head.config.hidden_size))
        self._num_before = 0

    def prefill(
        self, prompt: Sequence[int], *, schedule: Schedule, capacity: int, features_TE: Tensor | None = None, **_: Any
    ) -> None:
        """Start a sequence: read all prompt tokens but the last (see `WindowDrafter`)."""
        self._depth, self._size = schedule.num_speculative_tokens, schedule.tree_size
        self._top_k = schedule.tree_top_k
        assert features_TE is not None, "an EAGLE head without the target's features"
        self.head.output.add_prompt_tokens(prompt)
        self.cache.start(capacity + self._depth * self._top_k)
        ids, feature_TD = self._begin(prompt, features_TE, prompt_length=len(prompt))
        self._read(ids[:-1], feature_TD[:-1])
        self._last, self._num_before = (ids[-1:], feature_TD[-1:]), self.cache.cursor

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """Draft a tree after the committed text (see `WindowDrafter`)."""
        if committed:
            assert features_TE is not None, "tokens without the target's features"
            self._num_before += len(self._last[0])
            self._last = (committed, self._input_feature(features_TE))
        self.cache.set_length(self._num_before)
        ids, feature_TD = self._last
        feature_1D = self.feed(ids, feature_TD, positions=self._positions(len(ids)))[-1:]
        growing = GrowingTree(self._top_k, self.cache.cursor, feature_1D)
        growing.expand(*self.rank(feature_1D, self._top_k))
        yield len(ids)
        for _ in range(1, self._depth):
            yield self._grow(growing)
        return growing.window(self._size)

    def _grow(self, growing: GrowingTree) -> int:
        """Feed the nodes of the last level and give them children; return how many were fed."""
        ids, feature_RD = growing.next_rows()
        place = self._position(growing.base + growing.num_levels - 1)
        positions = torch.full((len(ids),), place, device=self.device)
        mask = _mask_after(growing.base, growing.seen_RF)
        growing.feature_RD = self.feed(ids, feature_RD, positions=positions, mask=mask)
        growing.expand(*self.rank(growing.feature_RD, growing.top_k))
        return len(ids)

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """Return a step of so many nodes side by side that ranks as many children of each (see `WindowDrafter`)."""
        rows, context = measurement.rows, measurement.context
        self.cache.start(context + rows)
        self.cache.fill_random(context)
        config = self.head.config
        ids = torch.randint(config.vocab_size, (rows,)).tolist()
        feature_TD = torch.randn(rows, config.hidden_size, dtype=self.dtype, device=self.device)
        positions = torch.full((rows,), context, device=self.device)
        itself_RR = feature_TD.new_full((rows, rows), -math.inf).fill_diagonal_(0)
        mask = _mask_after(context, itself_RR)

        def run() -> None:
            self.cache.set_length(context)
            self.rank(self.feed(ids, feature_TD, positions=positions, mask=mask), rows)

        return run

    def ranks_along(
        self, ids: Sequence[int], *, start: int, features_TE: Tensor, shapes: Sequence[tuple[int, int]]
    ) -> list[NDArray[np.int32]]:
        """Return places in the order of trees of the nodes that a sequence follows, [N, depth] each.

        The text before place `start`, at least 1, is the prompt; features of all positions but two are enough. `shapes`
        are (`num_speculative_tokens`, `tree_top_k`) of each tree. Trees of one top_k are grown once: a less deep one is
        the upper part of a deeper one. The current sequence is lost.
        """
        self.head.output.add_prompt_tokens(ids[:start])
        self.cache.start(len(ids) + max((depth * top_k for depth, top_k in shapes), default=0))
        feature_TD = self._read(*self._begin(ids[:-1], features_TE, prompt_length=start))
        deepest = {top_k: max(depth for depth, own in shapes if own == top_k) for _, top_k in shapes}
        found = [np.full((len(ids) - start, depth), -1, dtype=np.int32) for depth, _ in shapes]
        # from the end on: a tree takes the slots after its prefix, which the trees of shorter ones do not see
        for row in reversed(range(len(ids) - start)):
            base = start + row - self._first_position
            for top_k, most in deepest.items():
                tree = self._grown(
                    GrowingTree(top_k, base, feature_TD[base - 1 : base], ids[start + row :][:most]), most
                )
                for ranks, (depth, own) in zip(found, shapes, strict=True):
                    if own == top_k:
                        places = tree.places(depth)
                        ranks[row, : len(places)] = places
        return found

    def _grown(self, tree: GrowingTree, depth: int) -> GrowingTree:
        """Grow a tree as far as the places of the text that it follows need."""
        self.cache.set_length(tree.base)
        tree.expand(*self.rank(tree.feature_RD, tree.top_k))
        while tree.num_levels < depth and not tree.is_settled:
            self._grow(tree)
        return tree

    @torch.inference_mode()
    def feed(self, ids: Sequence[int], feature_TD: Tensor, *, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run rows at the cache's cursor, which moves on, and return their features [T, D]; no mask: text order."""
        ids_BT = torch.tensor([ids], device=self.device)
        feature_BTD = self.head(ids_BT, feature_TD[None], positions=positions, mask=mask, cache=self.cache)
        self.cache.advance(len(ids))
        return feature_BTD[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def rank(self, feature_RD: Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
        """Return the best target ids after every row, best first, and their log-probabilities."""
        output = self.head.output
        logits_RV = output.logits(self.head.output_state(feature_RD))
        best = ranked_ids(logits_RV, min(count, logits_RV.shape[-1]))
        log_probs = logits_RV.float().log_softmax(-1).gather(-1, best)
        return output.ids[best].tolist(), log_probs.tolist()

    def _position(self, slot: int) -> int:
        return self._first_position + slot

    def _begin(self, ids: Sequence[int], features_TE: Tensor, *, prompt_length: int) -> tuple[Sequence[int], Tensor]:
        """Return the tokens of a sequence and the features fed with them; position 0 only if it is the whole prompt."""
        feature_TD = self._input_feature(features_TE[: len(ids) - 1])
        if prompt_length > 1:
            self._first_position = 1
            return ids[1:], feature_TD
        self._first_position = 0
        return ids, torch.cat([feature_TD.new_zeros(1, self.head.config.hidden_size), feature_TD])

    def _read(self, ids: Sequence[int], feature_TD: Tensor) -> Tensor:
        parts = [feature_TD[:0]]
        for start, stop in prefill_pieces(len(ids)):
            positions = self._positions(stop - start)
            parts.append(self.feed(ids[start:stop], feature_TD[start:stop], positions=positions))
        return torch.cat(parts)

    def _positions(self, count: int) -> Tensor:
        start = self._position(self.cache.cursor)
        return torch.arange(start, start + count, device=self.device)

    @torch.inference_mode()
    def _input_feature(self, features_TE: Tensor) -> Tensor:
        return self.head.input_feature(features_TE.to(self.device, self.dtype))


def _mask_after(context: int, own_RS: Tensor) -> Tensor:
    return torch.cat([own_RS.new_zeros(len(own_RS), context), own_RS], dim=1)
