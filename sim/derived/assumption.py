"""A number that a prediction stands on: what it is, where it is from, and how much it may be off by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot
from typing import Final, Self

from hwprofiles.quantity import Quantity, Status

ERROR_OF: Final[dict[Status, float]] = {"measured": 0.05, "datasheet": 0.05, "derived": 0.1, "guessed": 0.3}
"""Half-width (90 %) of a number that does not say how far its sources differ: our judgement, wider with every step
that nobody measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """One number.

    Attributes:
        field: what it is, as `gpu.memory_efficiency`.
        value: in SI units.
        status: how it is known.
        source: where it is from.
        low: lower end of where it lies with 90 %, as far as anybody knows.
        high: the upper one.
    """

    field: str
    value: float
    status: Status
    source: str
    low: float
    high: float

    @classmethod
    def of(
        cls, field: str, value: float, status: Status, source: str, *, span: tuple[float, float] | None = None
    ) -> Self:
        """One whose ends follow from its status where `span` does not give them."""
        error = ERROR_OF[status]
        low, high = span or (value * (1 - error), value * (1 + error))
        return cls(field=field, value=value, status=status, source=source, low=low, high=high)

    @classmethod
    def of_quantity(cls, field: str, quantity: Quantity) -> Self:
        """A quantity of a platform, or what stands in for one."""
        return cls.of(field, quantity.value, quantity.status, quantity.source, span=quantity.span)

    @property
    def relative_error(self) -> float:
        """Half the way from its low to its high end, relative to it; 0 where these are one, such as a rate of 0."""
        return (self.high - self.low) / 2 / self.value if self.high > self.low else 0.0


def joint_error(assumptions: Iterable[Assumption]) -> float:
    """Half-width (90 %) of a product or quotient of numbers that err on their own, relative."""
    return hypot(*(one.relative_error for one in assumptions))
