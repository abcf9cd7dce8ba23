"""The target of one sequence on one rank of a group: all ranks run the same windows and come to the same verdicts."""

from __future__ import annotations

import torch

from decoding.messages import Verdict
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import ShardedDecoder
from runtime.parallel.sharded_exit import ShardedExit
from runtime.parallel.sharded_top_k import sharded_top_k
from runtime.parallel.sharded_weights import load_sharded_decoder
from runtime.target.exit_folder import ExitHeads, load_exits
from runtime.target.target_model import RowsUnderWay, TargetModel
from runtime.verification.rules import verify_best
from runtime.wire.operations import LoadTarget


class ShardedTarget(TargetModel):
    """A `TargetModel` of which this rank holds a share, keys and values of its heads included."""

    def __init__(self, decoder: ShardedDecoder, heads: ExitHeads | None = None) -> None:
        super().__init__(decoder)
        self.early_exit = ShardedExit(decoder, heads)
        self._head, self._group = decoder.lm_head, decoder.group

    @torch.inference_mode()
    def decide(self, rows: RowsUnderWay) -> Verdict:
        """See `TargetModel`; where the target takes its argmax, the ranks exchange theirs and no logits."""
        if not self._sampling.is_greedy:
            return super().decide(rows)
        logits_TV = self._head.own_logits(self.decoder.normalise(rows.x_BTD))[0]
        best = sharded_top_k(logits_TV, self._head.ids, 1, self._group)
        verdict = verify_best(best.ids[:, 0].tolist(), rows.window)
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
