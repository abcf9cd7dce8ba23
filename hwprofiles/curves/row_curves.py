"""Public curves of what passes over several rows take, next to the pass over one: a table with its sources.

Each curve is of one device, engine, back end, model and weights. Times are relative to the pass over one row, and
nothing between measured rows is in the table (`benchmarks/row_curves.py` made it).
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
        device, family: by the names of `hwprofiles.curves.names`; family is empty where it is not known.
        engine, backend: what ran the model, and on what.
        weights, stored: which kernels read them, and what the source calls them.
        model, billions: as the source calls it, and how many weights a row reads; 0 where nobody tells.
        expert_share, experts, per_token: of a mixture: share of the bytes of one row's weights that are of routed
            experts, experts of a layer, and those of a token; 0 for a dense model, or where nobody tells.
        context: as the source tells it.
        rows, ratios: measured numbers of rows, from 1 on, and times over that of one; many sources tell
            of one row only.
        one_row_s: seconds of that pass.
        efficiency: share of the device's bandwidth at which it read the weights, kernels' starts apart; None where the
            sizes are not known.
        starts: share of that pass that kernels' starts take; 0 where the sizes are not known.
        source, date: where it is from, and when.
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
        """Whether it is of long contexts, which rows do not read twice."""
        return longest_context(self.context) > LONG_CONTEXT

    def expert_factor(self, rows: float) -> float:
        """Return the time of rows over that of one for the experts that they read alone: starts stay.

        Tokens are taken to choose their experts evenly and on their own.
        """
        read = expert_factor(rows, self.expert_share, self.experts, self.per_token)
        return self.starts + (1 - self.starts) * read

    def ratio(self, rows: float) -> float | None:
        """Return the time over that of one row; between measured rows on the straight line, None beyond them."""
        if not 1 <= rows <= self.rows[-1]:
            return None
        for (low, at_low), (high, at_high) in pairwise(zip(self.rows, self.ratios, strict=True)):
            if rows <= high:
                return at_low + (at_high - at_low) * (rows - low) / (high - low)
        return self.ratios[-1]


def expert_factor(rows: float, share: float, experts: int, per_token: int) -> float:
    """Return bytes that rows read over those of one row, of which routed experts have a share; 1 for a dense model."""
    if not experts:
        return 1.0
    chosen = per_token / experts
    touched: float = (1 - (1 - chosen) ** rows) / chosen
    return 1 - share + share * touched


def longest_context(told: str) -> int:
    """Return the largest number in what is told of a context, `8k` being 8,000."""
    return max((int(digits) * (1000 if kilo else 1) for digits, kilo in _NUMBER.findall(told)), default=0)


@cache
def read_curves() -> tuple[PublicCurve, ...]:
    """Return all curves that ship."""
    with FILE.open(encoding="utf-8", newline="") as file:
        lines = [{name: value for name, value in line.items() if value} for line in csv.DictReader(file)]
    return TypeAdapter(tuple[PublicCurve, ...]).validate_python(lines)
