"""Ids that a draft, head or exit may propose: those of its reduced vocabulary, and the tokens of the prompt.

Names and numbers of an answer mostly are in its prompt, and a reduced vocabulary lacks just these. Their rows are the
target's own, so nothing has to be trained for them. Shapes: V ids of the target, K kept ids, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.arrays import Array, concatenated, is_tensor, wide

if TYPE_CHECKING:
    from runtime.backends.backend import Backend, Head


class OutputRows:
    """Rows of a head and the target ids they belong to; those of a prompt come and go."""

    def __init__(self, kept_ids: Array, kept_KD: Array, target_VD: Array | None = None) -> None:
        """Start with the kept target ids [K] and their rows; without the target's whole head a prompt adds nothing."""
        self._kept = kept_ids, kept_KD
        self._target_VD, self.ids = target_VD, kept_ids
        self._rows: Array | None = kept_KD
        self._prompt_ED: Array | None = None
        self._backend: Backend | None = None
        self._kept_logits: Head | None = None
        self._prompt_logits: Head | None = None

    @property
    def rows(self) -> Array:
        """Rows of `ids`."""
        if self._rows is None:
            kept_KD = self._kept[1]
            self._rows = kept_KD if self._prompt_ED is None else concatenated([kept_KD, self._prompt_ED])
        return self._rows

    def move_to(self, device: Any) -> None:
        """Move rows and ids to a device; those of a prompt are dropped."""
        kept_ids, kept_KD = self._kept
        self._kept = kept_ids.to(device), kept_KD.to(device)
        self._target_VD = None if self._target_VD is None else self._target_VD.to(device)
        self._forget_prompt()

    def run_on(self, backend: Backend) -> None:
        """Compute logits on a back end."""
        self._backend, self._kept_logits = backend, backend.head(self._kept[1])

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Propose the tokens of this prompt too, in place of those of the last one."""
        self._forget_prompt()
        if self._target_VD is None:
            return
        kept_ids, kept_KD = self._kept
        known = kept_ids.cpu().numpy() if is_tensor(kept_ids) else kept_ids
        new = np.setdiff1d(np.array(prompt, np.int64), known)
        if not len(new):
            return
        own_ids = kept_ids.new_tensor(new) if is_tensor(kept_ids) else new
        self.ids, own_ED = concatenated([kept_ids, own_ids]), self._target_VD[own_ids]
        self._rows, self._prompt_ED = None, own_ED.to(kept_KD) if is_tensor(own_ED) else own_ED
        if self._backend is not None:
            self._prompt_logits = self._backend.prompt_head(self._prompt_ED)

    def logits(self, x: Array) -> Array:
        """Normalised hidden states [..., D] -> logits over `ids`."""
        if self._kept_logits is None:
            from runtime.models.row_invariance import linear

            if self.rows.dtype != x.dtype:
                self._rows = self.rows.to(x.dtype)
            return linear(x, self.rows)
        kept = self._kept_logits(x)
        if self._prompt_ED is None or self._prompt_logits is None:
            return kept
        return concatenated([wide(kept), self._prompt_logits(x)], axis=-1)

    def _forget_prompt(self) -> None:
        self.ids, self._rows = self._kept
        self._prompt_ED = self._prompt_logits = None


def all_ids(vocab_size: int) -> Array:
    """Every id of a vocabulary as a tensor [V]: what is kept of one that is not reduced."""
    import torch

    from runtime.models.decoder import is_unfilled

    return torch.empty(vocab_size, dtype=torch.long) if is_unfilled() else torch.arange(vocab_size)
