"""Reading a middle layer: an exit's best ids and their log-probabilities, under a reduced vocabulary.

Shapes: legend of `runtime.models.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from runtime.backends.backend import Backend
from runtime.models.decoder import Decoder
from runtime.models.ranking import ranked_ids
from runtime.models.vocabulary import OutputRows
from runtime.target.exit_folder import ExitHeads

Rows = tuple[tuple[int, ...], ...]


class EarlyExit:
    """The exits of one target. A layer without a trained adapter is read with the final norm and head alone."""

    def __init__(self, decoder: Decoder, heads: ExitHeads | None = None, *, backend: Backend | None = None) -> None:
        """Args: the target; its trained exits; what computes the reduced head, torch if there is nothing else."""
        self._normalise = decoder.normalise
        self._adapters = dict(heads.adapters) if heads else {}
        head_VD = decoder.lm_head.weight.detach()
        kept_ids = heads.kept_ids if heads else torch.arange(len(head_VD), device=head_VD.device)
        # rows of their own: gathering them for every message would cost more than the product
        self._output = OutputRows(kept_ids, head_VD[kept_ids] if heads else head_VD, head_VD if heads else None)
        self._on_host: Callable[..., tuple[Tensor, ...]] = lambda *tensors: tensors
        if backend is not None:
            self._output.run_on(backend.head)
            self._on_host = backend.on_host

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Name the tokens of this prompt too, besides those of the adapters' vocabulary."""
        self._output.add_prompt_tokens(prompt)

    @torch.inference_mode()
    def read(self, x_BTD: Tensor, layer: int, num_candidates: int) -> tuple[Rows, tuple[tuple[float, ...], ...]]:
        """Best target ids of every row of the only sequence, best first, and their log-probabilities.

        Args:
            x_BTD: hidden states after `layer`, [1, T, D].
            layer: the exit layer, counted from 1.
            num_candidates: ids per row.
        """
        if layer in self._adapters:
            x_BTD = self._adapters[layer](x_BTD)
        logits_TV = self._output.logits(self._normalise(x_BTD))[0].float()
        ids_TK = ranked_ids(logits_TV, num_candidates)
        log_probs_TK = logits_TV.gather(-1, ids_TK) - logits_TV.logsumexp(dim=-1, keepdim=True)
        ids, log_probs = self._on_host(self._output.ids[ids_TK], log_probs_TK)
        return tuple(map(tuple, ids.tolist())), tuple(map(tuple, log_probs.tolist()))
