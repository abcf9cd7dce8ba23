"""What a prediction of Mirror-SD must beat: one constant times vanilla speculation, and itself with a task left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from statistics import fmean
from typing import Final, NamedTuple

from planner.reproduce.fitted_table import fit
from planner.reproduce.published_table import PublishedCell
from planner.reproduce.reproduction import Reproduction, predict_table

_CALLS: Final = 30
"""Of a fit without one task, which begins where the fit of all cells ended."""


class Baselines(NamedTuple):
    """Mean |errors| of Mirror-SD as `constant_error` and `left_out_error` say."""

    constant: float | None
    left_out: float | None

    @classmethod
    def of(cls, found: Reproduction) -> Baselines:
        """Return both for a reproduction; takes seconds where constants were fitted."""
        return cls(constant_error(found.table.cells), left_out_error(found))


def constant_error(cells: Sequence[PublishedCell]) -> float | None:
    """Return the mean |error| of `c x vanilla`, each cell by the constant of all others; None without two cells."""
    ratios = [cell.mirror / cell.vanilla for cell in cells if cell.mirror is not None]
    if len(ratios) <= 1:
        return None
    logs = [log(ratio) for ratio in ratios]
    return fmean(abs(exp((sum(logs) - one) / (len(logs) - 1) - one) - 1) for one in logs)


def left_out_error(found: Reproduction) -> float | None:
    """Return the mean |error| over all cells, each task predicted by constants that were fitted to the other tasks.

    None where nothing was fitted, or the table has fewer than two tasks.
    """
    compared = [cell for cell in found.table.cells if cell.mirror is not None]
    tasks = dict.fromkeys(cell.task for cell in compared)
    if not found.fitted or len(tasks) <= 1:
        return None
    errors = []
    for task in tasks:
        others, left_out = (
            replace(found.table, cells=tuple(cell for cell in compared if (cell.task == task) is is_left_out))
            for is_left_out in (False, True)
        )
        constants = fit(others, found.setup, start=found.constants, max_calls=_CALLS).constants
        errors += [abs(cell.error or 0.0) for cell in predict_table(left_out, found.setup, constants).cells]
    return fmean(errors)
