"""Reading a middle layer: an exit's best ids and their log-probabilities, under a reduced vocabulary.

Shapes: legend of `runtime.decoder`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.decoder import Decoder
from runtime.exit_folder import ExitHeads
from runtime.ranking import ranked_ids

Rows = tuple[tuple[int, ...], ...]


class EarlyExit:
    """The exits of one target. A layer without a trained adapter is read with the final norm and head alone."""

    def __init__(self, decoder: Decoder, heads: ExitHeads | None = None) -> None:
        self._decoder = decoder
        self._adapters = dict(heads.adapters) if heads else {}
        self._kept_ids = heads.kept_ids if heads else None
        weight = decoder.head.weight
        # contiguous rows: gathering them for every message would cost more than the product
        self._head_weight = weight if self._kept_ids is None else weight[self._kept_ids].contiguous()

    @torch.inference_mode()
    def read(self, x_BTD: Tensor, layer: int, num_candidates: int) -> tuple[Rows, tuple[tuple[float, ...], ...]]:
        """Best target ids of every row of the only sequence, best first, and log-probabilities beside them.

        Args:
            x_BTD: hidden states after `layer`, [1, T, D].
            layer: the exit layer, counted from 1.
            num_candidates: ids per row.
        """
        if layer in self._adapters:
            x_BTD = self._adapters[layer](x_BTD)
        logits_TV = F.linear(self._decoder.normalise(x_BTD), self._head_weight)[0].float()
        ids_TK = ranked_ids(logits_TV, num_candidates)
        log_probs_TK = logits_TV.gather(-1, ids_TK) - logits_TV.logsumexp(dim=-1, keepdim=True)
        if self._kept_ids is not None:
            ids_TK = self._kept_ids[ids_TK]
        return tuple(map(tuple, ids_TK.tolist())), tuple(map(tuple, log_probs_TK.tolist()))
