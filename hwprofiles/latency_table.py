"""What calls of one model part take: a table over (rows, context), and the work that its times were compared with.

Between grid points times are interpolated linearly; outside the grid there is an error, never a silent extrapolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from decoding.errors import OutOfRangeError
from decoding.validation import Many
from decoding.yaml_file import StrictModel
from hwprofiles.bounds import MOST_IN_A_TABLE, Bytes, Count, RelativeError, Seconds


class LatencyTable(StrictModel):
    """Mean seconds of one model part over a grid, [rows][contexts].

    Attributes:
        rows: grid of row counts, ascending.
        contexts: grid of context lengths (tokens in the cache), ascending; one entry where the context does
            not matter, and then any context is in range.
        seconds: means.
        relative_error: half-width (90 %) of what the whole table may be off by, beyond what the lane's times share.
        bytes_per_call: memory traffic of one call at one row (weights and cache), for contention.
        source: where the numbers come from.
    """

    rows: Annotated[Many[Count], Field(min_length=1)]
    contexts: Annotated[Many[Count], Field(min_length=1)]
    seconds: Many[Many[Seconds]]
    relative_error: RelativeError = 0.0
    bytes_per_call: Bytes = 0.0
    source: str

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        for name, grid in (("rows", self.rows), ("contexts", self.contexts)):
            if list(grid) != sorted(set(grid)):
                msg = f"{name} {list(grid)} must be ascending without repeats"
                raise ValueError(msg)
        if [len(line) for line in self.seconds] != [len(self.contexts)] * len(self.rows):
            msg = f"seconds must be {len(self.rows)} lists (rows) of {len(self.contexts)} numbers (contexts)"
            raise ValueError(msg)
        taken = [one for line in self.seconds for one in line if one]
        if taken and max(taken) > MOST_IN_A_TABLE * min(taken):
            msg = f"seconds go from {min(taken):g} to {max(taken):g}: no part differs so much by its rows and context"
            raise ValueError(msg)
        return self

    def at(self, rows: float, context: float) -> float:
        """Seconds for `rows` rows at `context` cached tokens, bilinear.

        Raises:
            OutOfRangeError: outside the measured grid.
        """
        return float(self.along(rows, np.array([context], dtype=np.float64))[0])

    def along(self, rows: float, contexts: NDArray[np.float64]) -> NDArray[np.float64]:
        """`at` of many contexts (at least one) at once, same shape as `contexts`.

        Raises:
            OutOfRangeError: outside the measured grid.
        """
        if reason := self.missing(rows, contexts):
            raise OutOfRangeError(reason)
        line = [float(np.interp(rows, self.rows, column)) for column in zip(*self.seconds, strict=True)]
        return np.full(contexts.shape, line[0]) if len(line) == 1 else np.interp(contexts, self.contexts, line)

    def missing(self, rows: float, contexts: NDArray[np.float64]) -> str | None:
        """What `along` would refuse, in words; None if it would not."""
        low, high = self.contexts[0], self.contexts[-1]
        reason = None
        if rows > self.rows[-1]:
            reason = f"more than {self.rows[-1]} rows"
        elif rows < self.rows[0]:
            reason = f"fewer than {self.rows[0]} rows"
        elif low != high and not low <= contexts.min() <= contexts.max() <= high:
            reason = f"contexts {contexts.min():g}..{contexts.max():g}, outside {low}..{high},"
        return None if reason is None else f"{reason} were not measured ({self.source}); calibrate a wider grid"

    def scaled(self, factor: float | Sequence[float]) -> Self:
        """The same table with all times multiplied: by one factor, or by one for each row count of the grid."""
        factors = [factor] * len(self.rows) if isinstance(factor, int | float) else factor
        lines = zip(factors, self.seconds, strict=True)
        return self.model_copy(update={"seconds": tuple(tuple(own * time_s for time_s in line) for own, line in lines)})

    def less_certain(self, half_width: float) -> Self:
        """The same table with another, independent error."""
        return self.model_copy(update={"relative_error": hypot(self.relative_error, half_width)})


class Anchor(StrictModel):
    """Work that other times of a lane were compared with, of one row: a verification, or a step of the draft model.

    Attributes:
        context: cached tokens.
        seconds: its mean over the calibration.
        relative_error: half-width (90 %) of that mean.
    """

    context: Count
    seconds: Annotated[Seconds, Field(gt=0)]
    relative_error: RelativeError = 0.0
