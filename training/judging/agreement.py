"""How often wanted tokens are among the best of several outputs: heads, streams or exits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

TopKShares = dict[int, dict[int, float]]
"""Number of the output -> top-k -> share of positions whose wanted token is among the output's k best."""


class AgreementCount:
    """Counts batch by batch; shapes: legend of `training.data.batch`."""

    def __init__(self, top_ks: Sequence[int] = (1, 3, 8)) -> None:
        self._top_ks = top_ks
        self._hits: Counter[tuple[int, int]] = Counter()
        self._totals: Counter[int] = Counter()

    def add(self, number: int, logits_MV: Tensor, wanted_M: Tensor) -> None:
        """Count one batch of an output: its logits, and the wanted places among them (-1 for none)."""
        best_MK = logits_MV.topk(min(max(self._top_ks), logits_MV.shape[-1])).indices
        found_MK = best_MK == wanted_M[:, None]
        self._totals[number] += len(found_MK)
        for top_k in self._top_ks:
            self._hits[number, top_k] += int(found_MK[:, :top_k].any(-1).sum())

    @property
    def shares(self) -> TopKShares:
        """Counts as shares of the rows."""
        return {
            number: {top_k: self._hits[number, top_k] / max(total, 1) for top_k in self._top_ks}
            for number, total in self._totals.items()
        }

    def figures(self, name: str) -> dict[str, float]:
        """The same by names that begin with `name`."""
        return {
            f"{name}{number}_top{top_k}": share for number, row in self.shares.items() for top_k, share in row.items()
        }
