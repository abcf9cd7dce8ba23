"""A number somebody published, measured, derived or guessed: its value never goes without saying which, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, Field, model_validator

from decoding.validation import Pair
from decoding.yaml_file import StrictModel

Status = Literal["datasheet", "measured", "derived", "guessed"]
Finite = Annotated[float, Field(allow_inf_nan=False)]

CALIBRATION: Final = "this calibration"
"""Who measured what comes from a profile of `mirrorsd calibrate`."""
UNSOURCED: Final = "given without a source"
"""The source of a bare number that stands in a platform where a quantity could."""


class Quantity(StrictModel):
    """A number with its origin.

    Attributes:
        value: in the SI unit that the field's name ends with.
        span: lowest and highest value that is known, where sources or conditions differ; `value` lies within.
        status: `datasheet` (the maker's word), `measured`, `derived` from others, or `guessed` (the source reasons).
        source: where it is from, and how it was derived or why it was guessed.
        by: who measured it; belongs to `measured`.
        as_of: the day for which it holds; prices need one.
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
            msg = f"value {self.value:g} is outside its span {self.span[0]:g}..{self.span[1]:g}"
            raise ValueError(msg)
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
    """Refuses a quantity whose value or span leaves `low`..`high`."""

    def check(quantity: Quantity) -> Quantity:
        for number in (quantity.lowest, quantity.value, quantity.highest):
            if not low <= number <= high:
                msg = f"{number:g} is outside {low:g}..{high:g}, where numbers of this kind are"
                raise ValueError(msg)
        return quantity

    return AfterValidator(check)


def quantity_fields(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the fields of a model that hold a quantity, if anything."""
    return tuple(name for name, field in model.model_fields.items() if _may_be_quantity(field.annotation))


def quantities_of(model: BaseModel) -> dict[str, Quantity]:
    """Return the quantities that a model holds, by field."""
    values = {field: getattr(model, field) for field in quantity_fields(type(model))}
    return {field: value for field, value in values.items() if value is not None}


def with_quantities(data: Mapping[Any, Any], model: type[BaseModel]) -> dict[Any, Any]:
    """Return the data of a model, with the bare numbers among its quantities as guessed ones that give no source."""
    fields = quantity_fields(model)
    return {
        field: {"value": value, "status": "guessed", "source": UNSOURCED}
        if field in fields and isinstance(value, int | float) and not isinstance(value, bool)
        else value
        for field, value in data.items()
    }


def _may_be_quantity(annotation: Any) -> bool:
    return annotation is Quantity or any(map(_may_be_quantity, get_args(annotation)))
