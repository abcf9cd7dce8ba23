"""A number that a prediction rests on, with its source and its error."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

from decoding.yaml_file import load_yaml
from hwprofiles.quantity import Quantity, Status

ERROR_OF: Final[dict[Status, float]] = {"measured": 0.05, "datasheet": 0.05, "derived": 0.1, "guessed": 0.3}
"""Relative error (half-width, 90 %) of a number without a span, by its status: our judgement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """A number in SI units, by a name such as `gpu.memory_efficiency`; with 90 % it lies within `low` and `high`."""

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
        """Return an assumption whose ends are `span`, or follow from its status."""
        error = ERROR_OF[status]
        low, high = span or (value * (1 - error), value * (1 + error))
        return cls(field=field, value=value, status=status, source=source, low=low, high=high)

    @classmethod
    def of_quantity(cls, field: str, quantity: Quantity) -> Self:
        """Return a quantity as an assumption."""
        return cls.of(field, quantity.value, quantity.status, quantity.source, span=quantity.span)

    @classmethod
    def shipped(cls, name: str) -> Self:
        """Return an assumption of `assumptions.yaml`, by its field and perhaps what it is of."""
        return cls.of_quantity(name.partition("/")[0], _shipped()[name])

    @property
    def number(self) -> str:
        """The name without the part that it is of: `memory_efficiency`."""
        return self.field.rpartition(".")[2]

    @property
    def relative_error(self) -> float:
        """Half the distance of its ends over its value; 0 where they are equal, such as for a rate of 0."""
        return (self.high - self.low) / 2 / self.value if self.high > self.low else 0.0


@cache
def _shipped() -> Mapping[str, Quantity]:
    return load_yaml(Path(__file__).with_name("assumptions.yaml"), dict[str, Quantity])
