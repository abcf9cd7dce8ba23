"""The output vocabulary of a draft, head or exit, and ranking of logits.

A drafter proposes the ids of its reduced vocabulary and the tokens of the prompt: a reduced vocabulary lacks the names
and numbers that an answer repeats from its prompt. Their output rows are the target's, so they need no training. The
order of a row's best ids does not depend on the number of rows ranked together. Shapes: V ids of the target, K kept
ids, E ids of the prompt, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Array, as_array, as_tensor, concatenated, is_on_host, is_tensor, wide

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.backends.backend import Backend, Head


class OutputRows:
    """The output rows of a drafter or exit and their target ids; the rows of prompt tokens change with each prompt."""

    _rows: Array | None
    _prompt_ED: Array | None
    _prompt_logits: Head | None

    def __init__(self, kept_ids: Array, kept_KD: Array, target_VD: Array | None = None) -> None:
        """Args: kept target ids [K], their rows, and the target's whole head; without it no prompt tokens are added."""
        self.kept_ids, self._kept_KD, self._target_VD = kept_ids, kept_KD, target_VD
        self._backend: Backend | None = None
        self._kept_logits: Head | None = None
        self._forget_prompt()

    @property
    def rows(self) -> Array:
        """The output rows of `ids`."""
        if self._rows is None:
            added = self._prompt_ED
            self._rows = self._kept_KD if added is None else concatenated([self._kept_KD, added])
        return self._rows

    def move_to(self, device: Any) -> None:
        """Move rows and ids to a device, and drop those of the prompt."""
        self.kept_ids, self._kept_KD = self.kept_ids.to(device), self._kept_KD.to(device)
        self._target_VD = None if self._target_VD is None else self._target_VD.to(device)
        self._forget_prompt()

    def run_on(self, backend: Backend) -> None:
        """Compute logits on a back end."""
        self._backend, self._kept_logits = backend, backend.head(self._kept_KD)

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Replace the tokens of the last prompt by those of this one."""
        self._forget_prompt()
        kept = self.kept_ids
        new = np.setdiff1d(np.array(prompt, np.int64), as_array(kept))
        if self._target_VD is None or not len(new):
            return
        added_ids = kept.new_tensor(new) if is_tensor(kept) else new
        self.ids, added_ED = concatenated([kept, added_ids]), self._target_VD[added_ids]
        self._prompt_ED = added_ED.to(self._kept_KD) if is_tensor(added_ED) else added_ED
        if self._backend is not None:
            self._prompt_logits = self._backend.prompt_head(self._prompt_ED)

    def logits(self, x: Array) -> Array:
        """Return logits over `ids` of normalised hidden states [..., D]."""
        if self._kept_logits is None:
            from runtime.models.row_invariance import linear

            if self.rows.dtype != x.dtype:
                self._rows = self.rows.to(x.dtype)
            return linear(x, self.rows)
        kept = self._kept_logits(x)
        return kept if self._prompt_logits is None else concatenated([wide(kept), self._prompt_logits(x)], axis=-1)

    def _forget_prompt(self) -> None:
        self.ids = self.kept_ids
        self._rows = self._prompt_ED = self._prompt_logits = None


NO_NUMBER: Final = -1
"""The best id of a row with NaN, which `argmax` takes for the largest number."""
_ALL_BUT_SIGN = 0x7FFF_FFFF
_SPARE = 24
"""Ids ranked beyond those asked for: in bfloat16 the best logits are often equal, but seldom this many of them."""


def best_places(logits: Array) -> Array:
    """Return the argmax of the last dimension, the first of equal logits."""
    # argmax of bfloat16 is several times slower than converting first
    return wide(logits).argmax(-1)


def best_numbers(logits: Array) -> Array:
    """Return the argmax of the last dimension, or `NO_NUMBER` for rows with NaN, without waiting for the device."""
    numbers = wide(logits)
    places = numbers.argmax(-1)
    return places.masked_fill(numbers.gather(-1, places[..., None])[..., 0].isnan(), NO_NUMBER)


def ranked_ids(logits_RV: Array, count: int) -> Array:
    """Return the `count` best ids of every row [R, count], best first; of equal logits the lower id comes first."""
    if not is_tensor(logits_RV):
        return _ranked_array(logits_RV, count)
    if is_on_host(logits_RV):
        return as_tensor(_ranked_array(as_array(wide(logits_RV)), count))
    return _ranked_all(logits_RV, count)  # `_ranked_array`'s check for equal logits would wait for the device


def _ranked_array(logits_RV: NDArray[Any], count: int) -> NDArray[np.int64]:
    first = logits_RV.shape[-1] - count - _SPARE
    if first > 0:
        ids = np.argpartition(logits_RV, first, axis=-1)[:, first:]
        ids.sort(axis=-1)
        values = np.take_along_axis(logits_RV, ids, -1)
        order = np.argsort(-values, axis=-1, kind="stable")
        ends = np.take_along_axis(values, order[:, [count - 1, -1]], -1)
        if (ends[:, 0] > ends[:, 1]).all():  # else ids as good as the last one may be outside of the partition
            return np.take_along_axis(ids, order[:, :count], -1)
    return np.argsort(-logits_RV, axis=-1, kind="stable")[:, :count]


def _ranked_all(logits_RV: Tensor, count: int) -> Tensor:
    """Rank all ids of the vocabulary by an integer that orders by logit first and id second."""
    import torch

    vocab_size = logits_RV.shape[-1]
    bits = (logits_RV.float() + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0
    ordered = torch.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits).long()
    ids = torch.arange(vocab_size, device=logits_RV.device)
    return (ordered * vocab_size - ids).topk(count, dim=-1).indices
