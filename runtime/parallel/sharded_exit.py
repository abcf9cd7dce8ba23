"""The exits of a target on several ranks: each reads the rows of the reduced vocabulary that it holds.

Adapters are whole on every rank. Shapes: legend of `runtime.models.decoder`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.backends.backend import Backend
from runtime.models.vocabulary import OutputRows
from runtime.parallel.sharded_decoder import ShardedDecoder
from runtime.parallel.sharded_top_k import sharded_top_k
from runtime.target.early_exit import EarlyExit, Rows
from runtime.target.exit_folder import ExitHeads


class ShardedExit(EarlyExit):
    """An `EarlyExit` of which a rank holds some rows; all ranks read it together and get the same."""

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
