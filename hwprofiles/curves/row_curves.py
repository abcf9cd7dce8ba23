"""Reads the table of public row curves: times of passes over several rows, relative to a pass over one row.

Each curve is of one device, engine, back end, model and weight format, and has its source. `benchmarks/row_curves.py`
made the table; it holds measured rows only.
"""

import csv
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from decoding.validation import Many
from decoding.yaml_file import StrictModel

FILE: Final = Path(__file__).with_name("row-curves.csv")
LONG_CONTEXT: Final = 4096
_NUMBER: Final = re.compile(r"(\d+)(k?)")
_Text = Annotated[str, Field(min_length=1)]
_Listed = BeforeValidator(lambda told: told.split() if isinstance(told, str) else told)


class PublicCurve(StrictModel, strict=False):
    """One curve.

    Attributes:
        device, family: `device_key` and `family_of` (`hwprofiles.curves.names`); family is empty if not known.
        engine, backend: the engine that ran the model, and its back end.
        weights, stored: `weights_class` of the weight format, and the format's name in the source.
        model, billions: the model's name in the source, and billions of weights that a row reads (0: not known).
        expert_share, experts, per_token: of a mixture: routed experts' share of the weight bytes that one row reads,
            number of experts per layer, and experts per token; 0 for a dense model, or if not known.
        linear_share: of a mixture: share of its layers with linear attention.
        context: context length as the source tells it.
        rows, ratios: measured numbers of rows, starting at 1, and times relative to one row; many sources have one row
            only.
        one_row_s: seconds of the pass over one row.
        efficiency: share of the device's bandwidth at which the weights were read, without the time of kernels'
            starts; None if the sizes are not known.
        starts: share of `one_row_s` that the kernels' starts take; 0 if the sizes are not known.
        source, date: where the curve is from, and when it was published.
    """

    device: _Text
    family: str = ""
    engine: _Text
    backend: _Text
    weights: _Text
    stored: _Text
    model: _Text
    billions: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    expert_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    experts: Annotated[int, Field(ge=0)] = 0
    per_token: Annotated[int, Field(ge=0)] = 0
    linear_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    context: _Text
    rows: Annotated[Many[Annotated[int, Field(ge=1, le=1024)]], Field(min_length=1), _Listed]
    ratios: Annotated[Many[Annotated[float, Field(gt=0, le=1000)]], _Listed]
    one_row_s: Annotated[float, Field(gt=0, le=3600)]
    efficiency: Annotated[float, Field(gt=0, le=1.2)] | None = None
    starts: Annotated[float, Field(ge=0, le=1)] = 0.0
    source: _Text
    date: _Text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rows[0] != 1 or any(one >= other for one, other in pairwise(self.rows)):
            raise ValueError(f"rows {list(self.rows)} must rise from 1")
        if len(self.rows) != len(self.ratios) or self.ratios[0] != 1:
            raise ValueError(f"{len(self.ratios)} ratios of {len(self.rows)} numbers of rows, the first being 1")
        return self

    @property
    def is_mixture(self) -> bool:
        """Whether it is of a mixture of experts."""
        return "(MoE" in self.model or self.experts > 0

    @property
    def is_deep(self) -> bool:
        """Whether it was measured at a long context, where rows share the reading of the KV cache."""
        return longest_context(self.context) > LONG_CONTEXT

    def expert_factor(self, rows: float) -> float:
        """Return the growth of the time with `rows` that comes from reading more experts alone; 1 for one row.

        Assumes that tokens choose experts uniformly and independently; kernels' starts do not grow.
        """
        read = expert_factor(rows, self.expert_share, self.experts, self.per_token)
        return self.starts + (1 - self.starts) * read

    def ratio(self, rows: float) -> float | None:
        """Return the time relative to one row, interpolated linearly; None outside the measured rows."""
        if not 1 <= rows <= self.rows[-1]:
            return None
        for (low, at_low), (high, at_high) in pairwise(zip(self.rows, self.ratios, strict=True)):
            if rows <= high:
                return at_low + (at_high - at_low) * (rows - low) / (high - low)
        return self.ratios[-1]


def expert_factor(rows: float, share: float, experts: int, per_token: int) -> float:
    """Return the weight bytes that `rows` read relative to one row's; 1 for a dense model.

    `share`: routed experts' share of one row's bytes.
    """
    if not experts:
        return 1.0
    chosen = per_token / experts
    touched: float = (1 - (1 - chosen) ** rows) / chosen
    return 1 - share + share * touched


def longest_context(told: str) -> int:
    """Return the largest number in a source's text about the context; `8k` counts as 8,000."""
    return max((int(digits) * (1000 if kilo else 1) for digits, kilo in _NUMBER.findall(told)), default=0)


@cache
def read_curves() -> tuple[PublicCurve, ...]:
    """Return all shipped curves."""
    with FILE.open(encoding="utf-8", newline="") as file:
        lines = [{name: value for name, value in line.items() if value} for line in csv.DictReader(file)]
    return TypeAdapter(tuple[PublicCurve, ...]).validate_python(lines)
