"""An assumption: a number that a derived profile depends on, with its source and its error."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

from decoding.yaml_file import load_yaml
from hwprofiles.quantity import Quantity, Status

ERROR_OF: Final[dict[Status, float]] = {"measured": 0.05, "datasheet": 0.05, "derived": 0.1, "guessed": 0.3}
"""Relative error (half-width, 90 %) of a number without a span, by its status. These are judgements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """A number in SI units; `low` .. `high` is its 90 % interval, and `field` its name: `gpu.memory_efficiency`."""

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
        """Return an assumption whose interval is `span`, or by default follows from its status (`ERROR_OF`)."""
        error = ERROR_OF[status]
        low, high = span or (value * (1 - error), value * (1 + error))
        return cls(field=field, value=value, status=status, source=source, low=low, high=high)

    @classmethod
    def of_quantity(cls, field: str, quantity: Quantity) -> Self:
        """Return a quantity as an assumption."""
        return cls.of(field, quantity.value, quantity.status, quantity.source, span=quantity.span)

    @classmethod
    def shipped(cls, name: str) -> Self:
        """Return the entry `name` of `assumptions.yaml`; its field is the part of the name before a slash."""
        return cls.of_quantity(name.partition("/")[0], _shipped()[name])

    @property
    def number(self) -> str:
        """The last part of `field`, without the device: `memory_efficiency`."""
        return self.field.rpartition(".")[2]

    @property
    def relative_error(self) -> float:
        """Half the width of the interval over the value; 0 for an empty interval (so that the value may be 0)."""
        return (self.high - self.low) / 2 / self.value if self.high > self.low else 0.0


@cache
def _shipped() -> Mapping[str, Quantity]:
    return load_yaml(Path(__file__).with_name("assumptions.yaml"), dict[str, Quantity])
