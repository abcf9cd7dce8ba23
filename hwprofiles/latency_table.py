"""The times of one model part over (rows, context), and the anchors that they were compared with.

Between grid points times are interpolated linearly; outside the grid there is an error, never a silent extrapolation.
"""

from bisect import bisect_left
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
        contexts: grid of context lengths (cached tokens), ascending; a single entry stands for any context.
        relative_error: common error of the table (half-width, 90 %), beyond that of the lane.
        bytes_per_call: memory traffic of one call at one row (weights and cache), for contention.
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
                raise ValueError(f"{name} {list(grid)} must be ascending without repeats")
        if [len(line) for line in self.seconds] != [len(self.contexts)] * len(self.rows):
            raise ValueError(
                f"seconds must be {len(self.rows)} lists (rows) of {len(self.contexts)} numbers (contexts)"
            )
        taken = [one for line in self.seconds for one in line if one]
        if taken and max(taken) > MOST_IN_A_TABLE * min(taken):
            told = f"seconds go from {min(taken):g} to {max(taken):g}"
            raise ValueError(f"{told}: no part differs so much by its rows and context")
        return self

    def at(self, rows: float, context: float) -> float:
        """Return seconds at so many rows and cached tokens, bilinear; `OutOfRangeError` outside the grid."""
        return float(self.along(rows, np.array([context], dtype=np.float64))[0])

    def along(self, rows: float, contexts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `at` of many contexts (at least one), same shape as `contexts`; `OutOfRangeError` as there."""
        if reason := self.missing(rows, contexts):
            raise OutOfRangeError(reason)
        line = self._line(rows)
        if len(line) == 1:
            return np.full(contexts.shape, line[0], dtype=np.float64)
        return np.interp(contexts, self.contexts, line)

    def _line(self, rows: float) -> Sequence[float]:
        """Return seconds at so many rows, by context of the grid."""
        after = bisect_left(self.rows, rows)
        if self.rows[after] == rows:
            return self.seconds[after]
        first, last = self.rows[after - 1 : after + 1]
        lines = zip(self.seconds[after - 1], self.seconds[after], strict=True)
        return [(other - one) / (last - first) * (rows - first) + one for one, other in lines]

    def without_context(self, rows: float) -> float:
        """Return seconds at so many rows before any token is cached, which may lie outside of the grid.

        There the straight line through both ends of the grid goes on: the seconds do not fall below 0, nor rise above
        those of the first context. `OutOfRangeError` for rows outside the grid.
        """
        if reason := self.missing(rows, np.array(self.contexts[:1])):
            raise OutOfRangeError(reason)
        first, last = self.contexts[0], self.contexts[-1]
        line = self._line(rows)
        slope = (line[-1] - line[0]) / (last - first) if last > first else 0.0
        return min(max(0.0, line[0] - slope * first), line[0])

    def missing(self, rows: float, contexts: NDArray[np.float64]) -> str | None:
        """Return why `along` would refuse; None if it would not."""
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
        """Return a copy with all times multiplied: by one factor, or by one for each row count of the grid."""
        factors = [factor] * len(self.rows) if isinstance(factor, int | float) else factor
        lines = zip(factors, self.seconds, strict=True)
        return self.model_copy(update={"seconds": tuple(tuple(own * time_s for time_s in line) for own, line in lines)})

    def less_certain(self, half_width: float) -> Self:
        """Return a copy with another, independent error added."""
        return self.model_copy(update={"relative_error": hypot(self.relative_error, half_width)})

    def reading(self, num_bytes: float) -> Self:
        """Return a copy whose calls read so many bytes."""
        return self.model_copy(update={"bytes_per_call": num_bytes})


class Anchor(StrictModel):
    """A verification or a draft step of one row that other times of a lane were compared with: its mean seconds."""

    context: Count
    seconds: Annotated[Seconds, Field(gt=0)]
    relative_error: RelativeError = 0.0
