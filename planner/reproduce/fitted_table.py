"""Fits a machine's few unknown constants to one table, within physical bounds and near the values of data sheets.

A table of speed-ups fixes ratios of times and little else, so the fit is a regularised least-squares one::

    mean over cells (ln(predicted / published) / 5 %)^2
        + 0.1 * sum over constants (ln(value / data sheet) / half of ln(highest / lowest))^2
        + (ln(how much later a faster arm is than a slower one) / 5 %)^2

The first term counts only Mirror-SD. The last term keeps the order of the paper's ablations: streams beat a plain
draft, Mirror-SD beats both of these in turn, and Mirror-SD with streams beats all. Constants that the table does not
determine stay near their data sheets. Fits that ship are YAML files; the baselines that a fit has to beat are here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np

from costs.cost_model import Floats
from decoding.errors import ConfigError
from decoding.yaml_file import load_yaml
from planner.reproduce.published_table import PublishedCell, PublishedTable
from planner.reproduce.reproduction import PredictedCell, Reproduction, predict_table
from planner.reproduce.setup import ConstantName, Constants, Setup, Unknown

_TOLERANCE: Final = 0.05
"""Expected relative error of a published speed-up, from all that is not modelled."""
_PULL: Final = 0.1
_STEP: Final = 0.3
_STEP_NEAR: Final = 0.05
"""The first step of a search that starts at constants fitted to nearly the same cells."""
_CLOSE: Final = 1e-3
MOST_CALLS: Final = 80


def fit(
    table: PublishedTable, setup: Setup, *, start: Constants | None = None, max_calls: int = MOST_CALLS
) -> Reproduction:
    """Return the predictions with the constants that fit the table's Mirror-SD cells best.

    The search starts at `start`, or at the data sheets' values. Raises `ConfigError` for a table without Mirror-SD.
    """
    if all(cell.mirror is None for cell in table.cells):
        msg = f"{table.source}: has no column 'Mirror-SD' with numbers to fit to; predict it without a fit (--no-fit)"
        raise ConfigError(msg)
    unknowns = setup.unknowns()

    def cost(places: Floats) -> float:
        constants = constants_at(unknowns, places)
        found = predict_table(table, setup, constants)
        outside = np.maximum(0.0, np.abs(places) - np.abs(_places(unknowns, constants)))
        return _misfit(found.cells) + _PULL * float(places @ places) + float(outside @ outside)

    begin, step = (np.zeros(len(unknowns)), _STEP) if start is None else (_places(unknowns, start), _STEP_NEAR)
    places = minimize(cost, begin, step=step, tolerance=_CLOSE, max_calls=max_calls)
    return predict_table(table, setup, constants_at(unknowns, places), fitted=[unknown.name for unknown in unknowns])


def constants_at(unknowns: Sequence[Unknown], places: Floats) -> Constants:
    """Return the constants at `places`: log distances from the data sheets, in half-widths of the bounds; clipped."""
    found: dict[ConstantName, float] = {}
    for unknown, place in zip(unknowns, places, strict=True):
        value = unknown.datasheet * exp(place * _half_width(unknown))
        found[unknown.name] = min(unknown.high, max(unknown.low, value))
    return found


def _places(unknowns: Sequence[Unknown], constants: Constants) -> Floats:
    return np.array([log(constants[one.name] / one.datasheet) / _half_width(one) for one in unknowns])


def _half_width(unknown: Unknown) -> float:
    return log(unknown.high / unknown.low) / 2 or 1.0  # any width will do for a constant that is known exactly


def _misfit(cells: Sequence[PredictedCell]) -> float:
    errors = [log(1 + cell.error) for cell in cells if cell.error is not None]
    disorder = [max(0.0, log(slower / faster)) for cell in cells for slower, faster in pairwise(cell.arms.values())]
    return sum(error**2 for error in errors) / len(errors) / _TOLERANCE**2 + (
        sum(one**2 for one in disorder) / len(cells) / _TOLERANCE**2
    )


def minimize(
    function: Callable[[Floats], float], start: Floats, *, step: float, tolerance: float, max_calls: int
) -> Floats:
    """Return a minimum of `function`, found by the simplex search of Nelder and Mead (1965), without derivatives.

    The simplex starts at `start` with edges of `step`. The search ends when the values of all corners lie within
    `tolerance` both before and after the simplex is shrunk (there may be a valley between the corners), or soon after
    `max_calls` calls.
    """
    corners = np.vstack([start, start + step * np.eye(len(start))])
    values = np.array([function(corner) for corner in corners])
    num_calls, was_flat = len(values), False
    while num_calls < max_calls:
        order = np.argsort(values, kind="stable")
        corners, values = corners[order], values[order]
        is_flat = values[-1] - values[0] <= tolerance
        if is_flat and was_flat:
            break
        if is_flat:
            num_calls += _shrink(function, corners, values)
        else:
            num_calls += _move_worst(function, corners, values, corners[:-1].mean(axis=0))
        was_flat = is_flat
    best: Floats = corners[int(np.argmin(values))]
    return best


def _move_worst(function: Callable[[Floats], float], corners: Floats, values: Floats, middle: Floats) -> int:
    """Replace the worst corner (the last one), or shrink the simplex; return the number of calls."""

    def at(share: float) -> tuple[Floats, float]:
        corner = middle + share * (middle - corners[-1])
        return corner, function(corner)

    reflected = at(1.0)
    if values[0] <= reflected[1] < values[-2]:
        corners[-1], values[-1] = reflected
        return 1
    if reflected[1] < values[0]:
        corners[-1], values[-1] = min(reflected, at(2.0), key=lambda found: found[1])
        return 2
    contracted = at(0.5 if reflected[1] < values[-1] else -0.5)
    if contracted[1] < min(reflected[1], values[-1]):
        corners[-1], values[-1] = contracted
        return 2
    return 2 + _shrink(function, corners, values)


def _shrink(function: Callable[[Floats], float], corners: Floats, values: Floats) -> int:
    """Move all corners half-way to the best (the first one); return the number of calls."""
    corners[1:] = corners[0] + 0.5 * (corners[1:] - corners[0])
    values[1:] = [function(corner) for corner in corners[1:]]
    return len(corners) - 1


_CALLS: Final = 30
"""Limit of calls for a fit without one task, which starts where the fit to all cells ended."""


class Baselines(NamedTuple):
    """Mean |errors| of Mirror-SD by `constant_error` and by `left_out_error`."""

    constant: float | None
    left_out: float | None

    @classmethod
    def of(cls, found: Reproduction) -> "Baselines":
        """Return both for a reproduction; takes seconds where constants were fitted."""
        return cls(constant_error(found.table.cells), left_out_error(found))


def constant_error(cells: Sequence[PublishedCell]) -> float | None:
    """Return the mean |error| of predicting `c * vanilla`, with c from all other cells; None for fewer than two."""
    ratios = [cell.mirror / cell.vanilla for cell in cells if cell.mirror is not None]
    if len(ratios) <= 1:
        return None
    logs = [log(ratio) for ratio in ratios]
    return fmean(abs(exp((sum(logs) - one) / (len(logs) - 1) - one) - 1) for one in logs)


def left_out_error(found: Reproduction) -> float | None:
    """Return the mean |error| of constants fitted without the task they predict; None without a fit or for one task."""
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


_FOLDER: Final = Path(__file__).parent


class Origin(NamedTuple):
    """Where constants come from, in words, and the name of the shipped table that they were fitted to earlier."""

    words: str
    table: str | None = None


def known_constants(platform: str, setup: Setup) -> tuple[Constants, Origin]:
    """Return the constants that were fitted for a shipped platform, else those of data sheets; and their origin.

    Fitted latencies of links are in the platform's own file, so that plans use them too. What was not fitted is from
    data sheets.
    """
    if platform not in {path.stem for path in _FOLDER.glob("*.yaml")}:
        return setup.datasheet(), Origin("data sheets and nearest measurements")
    found = load_yaml(_FOLDER / f"{platform}.yaml", dict[str, Any])
    values: Constants = {**setup.datasheet(), **setup.placed(), **found["constants"]}
    table = found["fitted_to"]
    words = f"fitted to {table}.csv, {found['models']}, {found['num_cells']} cells, on {found['platform']}"
    return values, Origin(words, table)
