"""Predict every cell of a published table, and fit what nobody published of the machine to the table of one model.

All that is known of a cell's text is how fast vanilla speculation was on it: that gives the rate at which its drafted
tokens are accepted, and the rate gives Mirror-SD. So no constant belongs to a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from statistics import fmean

import numpy as np

from decoding.errors import ConfigError
from planner.reproduce.machine import ConstantName, Constants
from planner.reproduce.published_table import PublishedCell, PublishedTable
from planner.reproduce.round_seconds import Arms
from planner.reproduce.setup import Setup


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedCell:
    """One cell; speed-ups are times plain decoding, and `rate` is that of acceptance, given that all before it were.

    Attributes:
        in_turn: vanilla speculation: the published value, unless no rate of acceptance gives it on this machine.
        in_turn_streaming: the same with a draft that streams.
        mirror: Mirror-SD with a plain draft.
        mirror_streaming: with one that streams, which is what the paper publishes.
    """

    published: PublishedCell
    rate: float
    in_turn: float
    in_turn_streaming: float
    mirror: float
    mirror_streaming: float

    @property
    def arms(self) -> tuple[float, float, float, float]:
        """The four arms in the order of the paper's ablations, the slowest first."""
        return self.in_turn, self.in_turn_streaming, self.mirror, self.mirror_streaming

    @property
    def error(self) -> float | None:
        """Of Mirror-SD, relative to what was published; positive where too much is predicted."""
        return None if self.published.mirror is None else self.mirror_streaming / self.published.mirror - 1

    @property
    def lead(self) -> float | None:
        """Predicted Mirror-SD over published EAGLE-3."""
        return None if self.published.eagle is None else self.mirror_streaming / self.published.eagle

    @property
    def published_lead(self) -> float | None:
        """The same, both published."""
        if self.published.eagle is None or self.published.mirror is None:
            return None
        return self.published.mirror / self.published.eagle

    @property
    def is_reached(self) -> bool:
        """Whether some rate of acceptance gives the published speed-up of vanilla speculation here."""
        return isclose(self.in_turn, self.published.vanilla, rel_tol=1e-6)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """A whole table, the machine's constants as used, and those that were fitted to this very table."""

    table: PublishedTable
    setup: Setup
    constants: Constants
    fitted: tuple[ConstantName, ...]
    arms: Arms
    cells: tuple[PredictedCell, ...]

    @property
    def mean_abs_error(self) -> float | None:
        """Over the cells that have a published Mirror-SD; None without any."""
        errors = [abs(cell.error) for cell in self.cells if cell.error is not None]
        return fmean(errors) if errors else None

    @property
    def mean_arms(self) -> tuple[float, ...]:
        """Mean speed-ups of `PredictedCell.arms`."""
        return tuple(map(fmean, zip(*(cell.arms for cell in self.cells), strict=True)))


def predict_table(
    table: PublishedTable, setup: Setup, constants: Constants, *, fitted: Sequence[ConstantName] = ()
) -> Reproduction:
    """Predict all cells with given constants; errors as in `Setup.profiles`."""
    arms, coverage = Arms.of(setup, constants), constants["exit_coverage"]
    rates = arms.rate_of(np.array([cell.vanilla for cell in table.cells]))
    found = {
        "in_turn": arms.speedup(arms.in_turn, rates, coverage),
        "in_turn_streaming": arms.speedup(arms.in_turn_streaming, rates, coverage),
        "mirror": arms.speedup(arms.mirror, rates, coverage),
        "mirror_streaming": arms.speedup(arms.mirror_streaming, rates, coverage),
    }
    cells = tuple(
        PredictedCell(
            published=cell,
            rate=float(rates[index]),
            **{name: float(speedups[index]) for name, speedups in found.items()},
        )
        for index, cell in enumerate(table.cells)
    )
    return Reproduction(
        table=table, setup=setup, constants=dict(constants), fitted=tuple(fitted), arms=arms, cells=cells
    )


def require_mirror(table: PublishedTable) -> None:
    """Raise `ConfigError` where there is nothing to fit to."""
    if all(cell.mirror is None for cell in table.cells):
        msg = f"{table.source}: has no column 'Mirror-SD' with numbers to fit to; predict it without a fit (--no-fit)"
        raise ConfigError(msg)
