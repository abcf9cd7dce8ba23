"""What one pass over several sequences costs: their rows add up, and each reads its own cache.

A cost model knows a pass of so many rows over one context. The part of it that does not depend on the context (the
weights, above all) is asked for once, for the sum of all rows; what a sequence's own context adds to the cost of its
own rows is added for each::

    cost(sum of rows, lowest context) + sum over sequences of (cost(its rows, its context) - cost(its rows, lowest))

With one sequence this is the cost model's own answer if what the context adds does not depend on the lowest one, and
always if the context does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import Floats, Ints, LaneCost, Part
from costs.ticks import work_in_ticks


class Passes:
    """Passes over the sequences of batches.

    Shape legend: S sequences in some pass, N passes.
    """

    def __init__(self, of_S: Ints, contexts_S: Ints | Floats, num_passes: int) -> None:
        """Sequence s takes part in pass `of_S[s]`, with `contexts_S[s]` tokens in its cache."""
        self._of, self._contexts, self._num_passes = of_S, contexts_S.astype(np.float64), num_passes
        lowest = np.full(num_passes, np.inf)
        np.minimum.at(lowest, of_S, self._contexts)
        self._lowest = np.where(np.isfinite(lowest), lowest, 0.0)

    @property
    def num_passes(self) -> int:
        """How many there are."""
        return self._num_passes

    def of_each(self, values_N: NDArray[Any]) -> NDArray[Any]:
        """What is true of a sequence's pass, [S]."""
        return values_N[self._of]

    def some(self, which_S: NDArray[np.bool_]) -> Passes:
        """Those sequences alone, in the same passes."""
        return Passes(self._of[which_S], self._contexts[which_S], self._num_passes)

    def with_contexts(self, contexts_S: Ints) -> Passes:
        """The same passes with other tokens in the caches."""
        return Passes(self._of, contexts_S, self._num_passes)

    def sums(self, values_S: Ints | Floats | NDArray[np.bool_]) -> Floats:
        """What the sequences of every pass add up to, [N]."""
        return np.bincount(self._of, weights=values_S, minlength=self._num_passes).astype(np.float64)

    def seconds(self, cost: LaneCost, calls: Mapping[Part, int], rows_S: Ints) -> Floats:
        """How long passes of so many rows of every sequence take, in whole ticks, [N]; nothing without rows.

        Raises:
            ProfileError: the lane has no cost for a part (`OutOfRangeError` where so many rows were not measured).
        """
        seconds = np.zeros(self._num_passes)
        total = self.sums(rows_S).astype(np.int64)
        for part, count in calls.items():
            base = _by_rows(cost, part, total, self._lowest)
            lowest = self._lowest[self._of]
            own = _by_rows(cost, part, rows_S, self._contexts) - _by_rows(cost, part, rows_S, lowest)
            seconds += count * (base + self.sums(own))
        return np.where(total > 0, work_in_ticks(seconds), 0.0)


def _by_rows(cost: LaneCost, part: Part, rows: Ints, contexts: Floats) -> Floats:
    """Seconds of one call each, the same shape as `rows`; nothing for no rows."""
    seconds = np.zeros(len(rows))
    for count in np.unique(rows[rows > 0]).tolist():
        same = rows == count
        seconds[same] = cost.seconds(part, count, contexts[same])
    return seconds
