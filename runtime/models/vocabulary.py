"""What a draft, head or exit may propose: the kept ids of its reduced vocabulary, and the tokens of the prompt.

Names, numbers and foreign words of an answer mostly are in its prompt, and a vocabulary reduced to what answers
use most lacks just these. Their rows are the target's own, as all others are, so nothing has to be trained for them.
Shapes: V ids of the target, K kept ids, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from runtime.models.decoder import is_unfilled
from runtime.models.row_invariance import linear


class OutputRows:
    """Rows of a head and the target ids they belong to; those of a prompt come and go."""

    def __init__(self, kept_ids: Tensor, kept_KD: Tensor, target_VD: Tensor | None = None) -> None:
        """Start with the kept ids alone.

        Args:
            kept_ids: target ids, [K].
            kept_KD: their rows.
            target_VD: all rows of the target's head; None where rows are no copies of those: then a prompt adds
                nothing.
        """
        self._kept = kept_ids, kept_KD
        self._target_VD = target_VD
        self.ids, self.rows = self._kept
        self._kept_logits: Callable[[Tensor], Tensor] | None = None

    def move_to(self, device: torch.device) -> None:
        """Have rows and ids on a device; a prompt's are forgotten."""
        kept_ids, kept_KD = self._kept
        self._kept = kept_ids.to(device), kept_KD.to(device)
        self._target_VD = None if self._target_VD is None else self._target_VD.to(device)
        self.ids, self.rows = self._kept

    def run_on(self, new_head: Callable[[Tensor], Callable[[Tensor], Tensor] | None]) -> None:
        """Have the kept rows computed by what `new_head` makes of them, if anything; a prompt's few rows stay here."""
        self._kept_logits = new_head(self._kept[1])

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Propose the tokens of this prompt too, in place of those of the last one."""
        kept_ids, kept_KD = self._kept
        self.ids, self.rows = self._kept
        if self._target_VD is None:
            return
        own = torch.tensor(sorted(set(prompt)), dtype=torch.long, device=kept_ids.device)
        new = own[~torch.isin(own, kept_ids)]
        if len(new):
            self.ids = torch.cat([kept_ids, new])
            self.rows = torch.cat([kept_KD, self._target_VD[new].to(kept_KD)])

    def logits(self, x: Tensor) -> Tensor:
        """Normalised hidden states [..., D] -> logits over `ids`."""
        if self._kept_logits is not None:
            own_ED = self.rows[len(self._kept[0]) :].float()
            return torch.cat([self._kept_logits(x).float(), linear(x.float(), own_ED)], dim=-1)
        if self.rows.dtype != x.dtype:
            self.rows = self.rows.to(x.dtype)
        return linear(x, self.rows)


def all_ids(vocab_size: int) -> Tensor:
    """Every id of a vocabulary, [V]: what is kept of one that is not reduced."""
    return torch.empty(vocab_size, dtype=torch.long) if is_unfilled() else torch.arange(vocab_size)
