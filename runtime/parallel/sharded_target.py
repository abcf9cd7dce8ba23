"""The target of one sequence on one rank of a group: all ranks run the same windows and come to the same verdicts."""

from __future__ import annotations

import torch

from decoding.messages import Verdict
from runtime.backends.eager import EagerBackend
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import ShardedDecoder
from runtime.parallel.sharded_exit import ShardedExit
from runtime.parallel.sharded_top_k import sharded_top_k
from runtime.parallel.sharded_weights import load_sharded_decoder
from runtime.target.exit_folder import ExitHeads, load_exits
from runtime.target.target_model import RowsUnderWay, TargetModel
from runtime.verification.rules import decide_greedy
from runtime.wire.operations import LoadTarget


class ShardedTarget(TargetModel):
    """A `TargetModel` of which this rank holds a share, keys and values of its heads included."""

    def __init__(self, decoder: ShardedDecoder, heads: ExitHeads | None = None) -> None:
        backend = EagerBackend(decoder)
        super().__init__(backend, ShardedExit(decoder, heads, backend))
        self._sharded = decoder

    @torch.inference_mode()
    def decide(self, rows: RowsUnderWay) -> Verdict:
        """See `TargetModel`; where the target takes its argmax, the ranks exchange theirs and no logits."""
        if not self._sampling.is_greedy:
            return super().decide(rows)
        head = self._sharded.lm_head
        logits_TV = head.own_logits(self._sharded.normalise(rows.x_BTD))[0]
        best_T = sharded_top_k(logits_TV, head.ids, 1, self._sharded.group).ids[:, 0].tolist()
        verdict = decide_greedy(best_T.__getitem__, rows.window, self._sampling, self.cache.cursor + 1)
        self.keep(verdict)
        return verdict


def load_sharded_target(operation: LoadTarget, group: Group, *, dtype: torch.dtype) -> ShardedTarget:
    """This rank's share of a target, and its exits if there are trained ones; on all ranks or on none.

    Raises:
        ModelError: see `load_sharded_decoder` and `load_exits`.
        LaneError: another rank could not load its share.
    """

    def load() -> ShardedTarget:
        decoder = load_sharded_decoder(operation.target, group, dtype=dtype)
        heads = load_exits(operation.exits, decoder.shape, dtype=dtype) if operation.exits else None
        return ShardedTarget(decoder, heads)

    return group.all_do(load)
