"""Quantities: numbers with their status (published, measured, derived or guessed) and source."""

import re
from collections.abc import Mapping
from datetime import date
from functools import cache
from math import inf, isinf
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from decoding.validation import Pair
from decoding.yaml_file import StrictModel

Status = Literal["datasheet", "measured", "derived", "guessed"]
Finite = Annotated[float, Field(allow_inf_nan=False)]

CALIBRATION: Final = "this calibration"
"""`Quantity.by` of numbers that `mirrorsd calibrate` measured."""
UNSOURCED: Final = "given without a source"
"""`Quantity.source` of a number that a platform gives without a source."""

_PREFIXES: Final = {
    "n": 1e-9,
    "u": 1e-6,
    "µ": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_LARGE: Final = {one: factor for one, factor in _PREFIXES.items() if factor >= 1}
_UNITS: Final[Mapping[str, tuple[Mapping[str, float], tuple[str, ...]]]] = {
    "bytes_per_s": (_LARGE | _BINARY, ("B/s", "Bps")),
    "transfers_per_s": (_LARGE, ("T/s",)),
    "bytes": (_LARGE | _BINARY, ("B",)),
    "flops": (_LARGE, ("FLOP/s", "FLOPS", "OP/s", "OPS")),
    "ops": (_LARGE, ("FLOP/s", "FLOPS", "OP/s", "OPS")),
    "s": ({one: factor for one, factor in _PREFIXES.items() if factor <= 1}, ("s",)),
    "w": (_PREFIXES, ("W",)),
    "": ({"": 0.01}, ("%",)),
}
"""Accepted SI prefixes and units, by the ending of the field's name (`memory_bytes_per_s`); "" is any other field."""
_EXAMPLES: Final = {"bytes_per_s": "80 GB/s", "bytes": "24 GB", "flops": "125 TFLOP/s", "ops": "50 TOPS", "s": "3 us"}
_LONGEST: Final = 400
"""Most characters of a number: matching `_NUMBER` takes time quadratic in the length."""
_NUMBER: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*(\S*)", re.IGNORECASE)


def number_in(text: str, field: str) -> float:
    """Return a number in the SI unit of its field: `80 GB/s`, `80e9`, `3 us`.

    Raises:
        ValueError: `text` is not a number or has the wrong kind of unit. The message is only the expected form (`a
            number such as ...`); the caller adds what was found.
    """
    ending = next(one for one in _UNITS if field == one or field.endswith(f"_{one}") or not one)
    factors = _spellings(ending)
    found = _NUMBER.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    value = inf if found is None or found[2] not in factors else float(found[1]) * factors[found[2]]
    if isinf(value):
        raise ValueError(f"a number such as {_EXAMPLES.get(ending, '0.5')} or 8e9")
    return value


@cache
def _spellings(ending: str) -> dict[str, float]:
    """Return the factor to SI of every accepted prefix + unit, and 1 for no unit.

    Bytes and operations may be in lower case. Bytes per second may not: `120 gbps` on a cable means bits.
    """
    prefixes, units = _UNITS[ending]
    exact = {prefix + unit: factor for prefix, factor in prefixes.items() for unit in units}
    lower = {spelt.lower(): factor for spelt, factor in exact.items() if ending in ("bytes", "flops", "ops")}
    return {"": 1.0} | lower | exact


class Quantity(StrictModel):
    """A number with its origin.

    Attributes:
        value: in the SI unit at the end of the field's name.
        span: lowest and highest known value, where sources or conditions differ.
        status: `datasheet` (published by the maker), `measured`, `derived` from other numbers, or `guessed`.
        source: where the number is from, and how it was derived or why it was guessed.
        by: who measured it; only with status `measured`.
        as_of: the day on which the number was valid; required for prices.
    """

    value: Annotated[Finite, Field(gt=0)]
    span: Pair[Annotated[Finite, Field(gt=0)]] | None = None
    status: Status
    source: Annotated[str, Field(min_length=1)]
    by: Annotated[str, Field(min_length=1)] | None = None
    as_of: Annotated[date, Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _within_span(self) -> Self:
        if self.span is not None and not self.span[0] <= self.value <= self.span[1]:
            raise ValueError(f"value {self.value:g} is outside its span {self.span[0]:g}..{self.span[1]:g}")
        return self

    @property
    def lowest(self) -> float:
        """The lower end of the span, or the value."""
        return self.value if self.span is None else self.span[0]

    @property
    def highest(self) -> float:
        """The upper end of the span, or the value."""
        return self.value if self.span is None else self.span[1]


def within(low: float, high: float) -> AfterValidator:
    """Return a validator that refuses a quantity whose value or span leaves `low`..`high`."""

    def check(quantity: Quantity) -> Quantity:
        for number in (quantity.lowest, quantity.value, quantity.highest):
            if not low <= number <= high:
                raise ValueError(f"{number:g} is outside {low:g}..{high:g}, where numbers of this kind are")
        return quantity

    return AfterValidator(check)


@cache
def quantity_fields(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of a model's fields whose type allows a `Quantity`."""

    def may_be_quantity(annotation: Any) -> bool:
        return annotation is Quantity or any(map(may_be_quantity, get_args(annotation)))

    return tuple(name for name, field in model.model_fields.items() if may_be_quantity(field.annotation))


def with_quantities(data: Mapping[Any, Any], model: type[BaseModel]) -> dict[Any, Any]:
    """Return `data` with texts such as `80 GB/s` parsed, and bare numbers turned into guessed quantities.

    Raises:
        ValidationError: a text is not a number; it carries the field, so that callers can name the line of the file.
    """
    found, fields = dict(data), quantity_fields(model)
    for field in (field for field in data if field in fields):
        value = _with_numbers(data[field], field, (field,), model)
        is_bare = isinstance(value, int | float) and not isinstance(value, bool)
        found[field] = {"value": value, "status": "guessed", "source": UNSOURCED} if is_bare else value
    return found


def _with_numbers(given: Any, field: str, place: tuple[str | int, ...], model: type[BaseModel]) -> Any:
    """Parse texts in a bare value, or in the `value` and `span` of a quantity; other data stay as they are."""
    if isinstance(given, Mapping):
        numbers = {
            key: _with_numbers(given[key], field, (*place, key), model) for key in ("value", "span") if key in given
        }
        return {**given, **numbers}
    if isinstance(given, list):
        return [_with_numbers(end, field, (*place, index), model) for index, end in enumerate(given)]
    try:
        return number_in(given, field) if isinstance(given, str) else given
    except ValueError as error:
        kind = PydanticCustomError("number", "{what}", {"what": str(error)})
        wrong = InitErrorDetails(type=kind, loc=place, input=given)
        raise ValidationError.from_exception_data(model.__name__, [wrong]) from error
