"""The time to read a prompt, which a compiled lane reads in calls of a few sizes: a staircase along its rows."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from calibrate.fitting.fit import Size, fit_table, make_table
from calibrate.fitting.ratios import Estimate
from hwprofiles.latency_table import LatencyTable

Calls = Callable[[int], Sequence[int]]
"""The sizes of the calls in which so many rows are read."""


def fit_prompts(times: Mapping[Size, Estimate], calls: Calls | None, error: float, source: str) -> LatencyTable:
    """Return the table of reading prompts, from the times of some of them.

    A prompt takes the sum of its `calls`, each as long as the longest prompt measured that is one call of that size.
    Prompts of several calls take more than that, by their attention to what was read before: a factor, interpolated
    between those measured. Without `calls` every row is computed as it is.
    """
    if calls is None:
        return fit_table(times, error, source)
    seconds = {rows: one.value for (rows, _), one in sorted(times.items())}
    of_calls = {calls(rows)[0]: one for rows, one in seconds.items() if len(calls(rows)) == 1}
    known = [0, *of_calls], [0.0, *np.maximum.accumulate(list(of_calls.values()))]

    def sum_of_calls(rows: int) -> float:
        return float(np.interp(calls(rows), *known).sum())

    longer = {rows: one / sum_of_calls(rows) for rows, one in seconds.items() if len(calls(rows)) > 1}
    factors = {max(of_calls, default=1): 1.0, **longer}
    first, last = min(seconds), max(seconds)
    ends = {first, last}
    for rows in range(first, last):
        if calls(rows) != calls(rows + 1):
            ends |= {rows, rows + 1}
    at = sorted(ends)
    dearer = np.interp(at, list(factors), list(factors.values()))
    lines = [(sum_of_calls(rows) * float(factor),) for rows, factor in zip(at, dearer, strict=True)]
    return make_table(at, (0,), lines, error, source)
