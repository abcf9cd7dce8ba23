"""The target of one sequence on one rank of a group: all ranks run the same windows and come to the same verdicts.

Where the best ids of rows are enough, each rank ranks its own and the few best are merged: in place of a gather of the
vocabulary a row costs 2 K + 1 numbers a rank. Shapes: legend of `runtime.models.decoder`; K ids of a row, V the rank's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from decoding.messages import Verdict
from runtime.backends.backend import Backend
from runtime.backends.eager import EagerBackend
from runtime.models.ranking import ranked_ids
from runtime.models.vocabulary import OutputRows
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import ShardedDecoder, load_sharded_decoder
from runtime.target.early_exits import EarlyExit, ExitHeads, Rows, load_exits
from runtime.target.target_model import RowsUnderWay, TargetModel
from runtime.verification.rules import decide_greedy
from runtime.wire.operations import LoadTarget


class TopK(NamedTuple):
    """The best ids of every row, best first [T, K], and their log-probabilities under the logits of all ranks."""

    ids: Tensor
    log_probs: Tensor


def sharded_top_k(logits_TV: Tensor, ids_V: Tensor, count: int, group: Group) -> TopK:
    """The `count` best of all ranks' ids, on every rank; of equal logits a lower rank's first ones go first."""
    logits_TV = logits_TV.float()
    own = min(count, len(ids_V))
    places_TK = ranked_ids(logits_TV, own) if own else ids_V.new_empty(len(logits_TV), 0)
    values = F.pad(logits_TV.gather(-1, places_TK), (0, count - own), value=-math.inf)
    ids = F.pad(ids_V[places_TK], (0, count - own))
    # ids are exact in float64, which also holds float32 as it is: one exchange serves for all
    total = logits_TV.logsumexp(dim=-1, keepdim=True)
    parts = group.gather(torch.cat([values.double(), ids.double(), total.double()], dim=-1))
    columns = zip(*(torch.split(part, [count, count, 1], dim=-1) for part in parts), strict=True)
    values, ids, totals = (torch.cat(column, dim=-1) for column in columns)
    best_TK = values.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    log_probs = values.gather(-1, best_TK) - totals.logsumexp(dim=-1, keepdim=True)
    return TopK(ids.gather(-1, best_TK).long(), log_probs.float())


class ShardedExit(EarlyExit):
    """An `EarlyExit` of which a rank holds some rows, and whole adapters; all ranks read it together."""

    def __init__(self, decoder: ShardedDecoder, heads: ExitHeads | None, backend: Backend) -> None:
        self._sharded, self._run = decoder, decoder.share.vocabulary
        head_VD = decoder.lm_head.weight.detach()
        # ids count from the rank's first row, until they are sent
        own_ids = torch.arange(len(head_VD), device=head_VD.device)
        output = OutputRows(own_ids, head_VD)
        if heads:
            kept_ids = self._own(heads.kept_ids)
            output = OutputRows(kept_ids, head_VD[kept_ids], head_VD)
        super().__init__(decoder.normalise, output, heads.adapters if heads else {}, backend)

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """See `EarlyExit`."""
        self._output.add_prompt_tokens(self._own(torch.tensor(prompt)).tolist())

    @torch.inference_mode()
    def read(self, x_BTD: Tensor, layer: int, num_candidates: int) -> tuple[Rows, tuple[tuple[float, ...], ...]]:
        """See `EarlyExit`."""
        if (adapter := self.open(layer)) is not None:
            x_BTD = adapter(x_BTD)
        logits_TV = self._output.logits(self._sharded.normalise(x_BTD))[0]
        best = sharded_top_k(logits_TV, self._output.ids + self._run.start, num_candidates, self._sharded.group)
        return tuple(map(tuple, best.ids.tolist())), tuple(map(tuple, best.log_probs.tolist()))

    def _own(self, ids: Tensor) -> Tensor:
        """Those of these ids whose rows this rank has, counted from its first row."""
        return ids[(ids >= self._run.start) & (ids < self._run.stop)] - self._run.start


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
    """This rank's share of a target, and its exits; raises `ModelError`, or `LaneError` if another rank fails."""

    def load() -> ShardedTarget:
        decoder = load_sharded_decoder(operation.target, group, dtype=dtype)
        heads = load_exits(operation.exits, decoder.shape, dtype=dtype) if operation.exits else None
        return ShardedTarget(decoder, heads)

    return group.all_do(load)
