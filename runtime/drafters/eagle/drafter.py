"""The drafter with an EAGLE head.

The first step of a rollout feeds the tokens committed since the last one, each with the target's feature of the
position before; every later step feeds the nodes of one level of a dynamic tree, with the head's own features. Accepted
nodes are fed again, with the target's. Shapes: legend of `runtime.drafters.eagle.model`; N positions of a text, R nodes
of a level, S slots.
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
    """An EAGLE head and its sequence; candidates are always its best ids, fixed before the target samples."""

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
        # tokens and features of the first step of the last rollout, and the number of slots before them
        self._last: tuple[Sequence[int], Tensor] = ((), torch.zeros(0, head.config.hidden_size))
        self._num_before = 0

    def prefill(
        self, prompt: Sequence[int], *, schedule: Schedule, capacity: int, features_TE: Tensor | None = None, **_: Any
    ) -> None:
        """See `WindowDrafter`."""
        self._depth, self._size = schedule.num_speculative_tokens, schedule.tree_size
        self._top_k = schedule.tree_top_k
        assert features_TE is not None, "an EAGLE head without the target's features"
        self.head.output.add_prompt_tokens(prompt)
        self.cache.start(capacity + self._depth * self._top_k)
        ids, feature_TD = self._begin(prompt, features_TE, prompt_length=len(prompt))
        self._read(ids[:-1], feature_TD[:-1])
        self._last, self._num_before = (ids[-1:], feature_TD[-1:]), self.cache.cursor

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """See `WindowDrafter`."""
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
        """Feed the nodes of the frontier and add their children; return how many nodes were fed."""
        ids, feature_RD = growing.next_rows()
        place = self._position(growing.base + growing.num_levels - 1)
        positions = torch.full((len(ids),), place, device=self.device)
        mask = _mask_after(growing.base, growing.seen_RF)
        growing.feature_RD = self.feed(ids, feature_RD, positions=positions, mask=mask)
        growing.expand(*self.rank(growing.feature_RD, growing.top_k))
        return len(ids)

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """See `WindowDrafter`: a step of `rows` nodes of a level, which ranks `rows` children of each."""
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
        """Return `tree_ranks` of a `PromptRecord` for each tree along a text, [N, depth].

        The tokens before `start` (at least 1) are the prompt; the last two positions need no features. `shapes` are the
        (`num_speculative_tokens`, `tree_top_k`) of each tree. Trees of the same top_k are grown once, since a less deep
        one is the upper part of a deeper one. The current sequence is lost.
        """
        self.head.output.add_prompt_tokens(ids[:start])
        self.cache.start(len(ids) + max((depth * top_k for depth, top_k in shapes), default=0))
        feature_TD = self._read(*self._begin(ids[:-1], features_TE, prompt_length=start))
        deepest = dict[int, int]()
        for depth, top_k in shapes:
            deepest[top_k] = max(depth, deepest.get(top_k, 0))
        found = [np.full((len(ids) - start, depth), -1, dtype=np.int32) for depth, _ in shapes]
        # backwards, since a tree overwrites the slots after its prefix, which trees of shorter prefixes do not see
        for row in reversed(range(len(ids) - start)):
            base = start + row - self._first_position
            for top_k, most in deepest.items():
                text = ids[start + row :][:most]
                tree = self._grown(GrowingTree(top_k, base, feature_TD[base - 1 : base], text), most)
                for ranks, (depth, tree_top_k) in zip(found, shapes, strict=True):
                    if tree_top_k == top_k:
                        places = tree.places(depth)
                        ranks[row, : len(places)] = places
        return found

    def _grown(self, tree: GrowingTree, depth: int) -> GrowingTree:
        """Grow a tree until it has `depth` levels or its places of the text are settled."""
        self.cache.set_length(tree.base)
        tree.expand(*self.rank(tree.feature_RD, tree.top_k))
        while tree.num_levels < depth and not tree.is_settled:
            self._grow(tree)
        return tree

    @torch.inference_mode()
    def feed(self, ids: Sequence[int], feature_TD: Tensor, *, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the next rows and move the cache's cursor behind them; return their features [T, D]. None is causal."""
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
        """Return the tokens to feed and the features of the positions before them.

        The first token has no position before it, and is left out unless it is the whole prompt.
        """
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


def _mask_after(context: int, seen_RF: Tensor) -> Tensor:
    """Return the mask of rows that see `context` slots, and then what `seen_RF` lets them see."""
    return torch.cat([seen_RF.new_zeros(len(seen_RF), context), seen_RF], dim=1)
