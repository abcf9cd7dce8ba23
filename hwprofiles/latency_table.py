"""Tables of one model part's times over (rows, context), and the anchors that the times were compared with.

Times are interpolated linearly between grid points; outside the grid an error is raised.
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
from hwprofiles.bounds import LONGEST_S, MOST_IN_A_TABLE, Bytes, Count, RelativeError, Seconds

_Grid = Sequence[Sequence[float]]
_Added = Annotated[float, Field(ge=-LONGEST_S, le=LONGEST_S)]
"""Seconds that a sequence adds; negative where a table falls with the context."""


class BatchTable(StrictModel):
    """The cost that the sequences of one call share, and the cost that each adds (`costs.cost_model.Shared`, `Own`).

    Attributes:
        num_bytes, reading_s, computing_s, least_s: shared cost, [total rows of all sequences].
        own_reading_s, own_computing_s: cost that a sequence adds, [its rows][its context].
    """

    num_bytes: Many[Bytes]
    reading_s: Many[Seconds]
    computing_s: Many[Seconds]
    least_s: Many[Seconds]
    own_reading_s: Many[Many[_Added]]
    own_computing_s: Many[Many[_Added]]

    def scaled(self, factors: Sequence[float]) -> Self:
        """Return a copy with all times multiplied, see `LatencyTable.scaled`."""
        by_rows = np.array(factors)
        lines = {name: getattr(self, name) * by_rows for name in ("reading_s", "computing_s", "least_s")}
        grids = {name: getattr(self, name) * by_rows[:, None] for name in ("own_reading_s", "own_computing_s")}
        return self.model_validate(self.model_dump() | {name: one.tolist() for name, one in (lines | grids).items()})


class LatencyTable(StrictModel):
    """Mean seconds of one model part over a grid, [rows][contexts].

    Attributes:
        rows: grid of row counts, ascending.
        contexts: grid of context lengths (cached tokens), ascending; a single entry stands for any context.
        relative_error: common error of the table (half-width, 90 %), beyond that of the lane.
        bytes_per_call: memory traffic of a call with one row (weights and cache), for contention.
        num_bytes: memory traffic over the grid, [rows][contexts]; empty: `bytes_per_call` everywhere.
        batch: cost of calls for several sequences; None: derived from how the table grows with the context.
        most_positions: longest sequence that the part's model supports, tokens; None if not known.
    """

    rows: Annotated[Many[Count], Field(min_length=1)]
    contexts: Annotated[Many[Count], Field(min_length=1)]
    seconds: Many[Many[Seconds]]
    relative_error: RelativeError = 0.0
    bytes_per_call: Bytes = 0.0
    num_bytes: Many[Many[Bytes]] = ()
    batch: BatchTable | None = None
    most_positions: Annotated[int, Field(ge=1, le=10**12)] | None = None
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
        if self.num_bytes and [len(line) for line in self.num_bytes] != [len(line) for line in self.seconds]:
            raise ValueError("num_bytes must have as many rows and contexts as seconds")
        for name, found in self.batch or ():
            lines = found if name.startswith("own_") else [self.contexts] * len(found)
            if [len(each) for each in lines] != [len(line) for line in self.seconds]:
                raise ValueError(f"batch.{name} must have as many rows as seconds, and what one adds as many contexts")
        taken = [one for line in self.seconds for one in line if one]
        if taken and max(taken) > MOST_IN_A_TABLE * min(taken):
            told = f"seconds go from {min(taken):g} to {max(taken):g}"
            raise ValueError(f"{told}: no part differs so much by its rows and context")
        return self

    def at(self, rows: float, context: float) -> float:
        """Return seconds for `rows` after `context` cached tokens, bilinear; raises `OutOfRangeError` off the grid."""
        return float(self.along(rows, np.array([context], dtype=np.float64))[0])

    def along(self, rows: float, contexts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `at` for each of `contexts` (at least one), in the same shape; raises `OutOfRangeError` likewise."""
        return self._along(self.seconds, rows, contexts)

    def traffic(self, rows: float, contexts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the memory traffic of a call, in bytes, for each of `contexts`; raises as `along`."""
        if not self.num_bytes:
            return np.full(contexts.shape, self.bytes_per_call, dtype=np.float64)
        return self._along(self.num_bytes, rows, contexts)

    def _along(self, grid: _Grid, rows: float, contexts: NDArray[np.float64]) -> NDArray[np.float64]:
        if reason := self.missing(rows, contexts):
            raise OutOfRangeError(reason)
        line = self._line(grid, rows)
        if len(line) == 1:
            return np.full(contexts.shape, line[0], dtype=np.float64)
        return np.interp(contexts, self.contexts, line)

    def _line(self, grid: _Grid, rows: float) -> Sequence[float]:
        """Return a grid's values at `rows` (interpolated), by context."""
        after = bisect_left(self.rows, rows)
        if self.rows[after] == rows:
            return grid[after]
        first, last = self.rows[after - 1 : after + 1]
        lines = zip(grid[after - 1], grid[after], strict=True)
        return [(other - one) / (last - first) * (rows - first) + one for one, other in lines]

    def shared(self, rows: float) -> tuple[float, float, float, float]:
        """Return the cost shared by sequences with `rows` rows in total: the fields of `costs.cost_model.Shared`.

        Raises `OutOfRangeError` for rows outside the grid.
        """
        seconds, num_bytes = self.without_context(rows)
        if self.batch is None:
            return num_bytes, seconds, seconds, 0.0
        batch = self.batch
        columns = batch.num_bytes, batch.reading_s, batch.computing_s, batch.least_s
        num_bytes, reading_s, computing_s, least_s = (float(np.interp(rows, self.rows, one)) for one in columns)
        return num_bytes, reading_s, computing_s, least_s

    def own(self, rows: float, contexts: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Return the cost that a sequence of `rows` adds: the fields of `costs.cost_model.Own`; raises as `along`."""
        num_bytes, seconds, *_ = self.shared(rows)
        own_bytes, batch = self.traffic(rows, contexts) - num_bytes, self.batch
        if batch is None:
            own_s = self.along(rows, contexts) - seconds
            return own_bytes, own_s, own_s
        return own_bytes, *(self._along(one, rows, contexts) for one in (batch.own_reading_s, batch.own_computing_s))

    def without_context(self, rows: float) -> tuple[float, float]:
        """Return seconds and bytes of `rows` rows at context 0, even if the grid starts later.

        They are extrapolated along the straight line through the first and last context, limited to 0 .. the value at
        the first context. Raises `OutOfRangeError` for rows outside the grid.
        """
        if reason := self.missing(rows, np.array(self.contexts[:1])):
            raise OutOfRangeError(reason)
        num_bytes = self._before(self.num_bytes, rows) if self.num_bytes else self.bytes_per_call
        return self._before(self.seconds, rows), num_bytes

    def _before(self, grid: _Grid, rows: float) -> float:
        first, last, line = self.contexts[0], self.contexts[-1], self._line(grid, rows)
        slope = (line[-1] - line[0]) / (last - first) if last > first else 0.0
        return min(max(0.0, line[0] - slope * first), line[0])

    def missing(self, rows: float, contexts: NDArray[np.float64]) -> str | None:
        """Return why `along` would raise; None if it would not."""
        low, high = self.contexts[0], self.contexts[-1]
        reason = None
        if rows > self.rows[-1]:
            reason = f"more than {self.rows[-1]} rows"
        elif rows < self.rows[0]:
            reason = f"fewer than {self.rows[0]} rows"
        elif low != high and not low <= contexts.min() <= contexts.max() <= high:
            reason = f"contexts {contexts.min():g}..{contexts.max():g}, outside {low}..{high},"
        widened = "calibrate or import a wider grid"
        return reason and f"{reason} were not measured ({self.source}); {widened}"

    def scaled(self, factor: float | Sequence[float]) -> Self:
        """Return a copy with all times multiplied by one factor, or by one factor for each row count of the grid."""
        factors = [factor] * len(self.rows) if isinstance(factor, int | float) else factor
        lines = zip(factors, self.seconds, strict=True)
        scaled = {"seconds": tuple(tuple(row_factor * time_s for time_s in line) for row_factor, line in lines)}
        return self.model_copy(update=scaled | {"batch": self.batch and self.batch.scaled(factors)})

    def less_certain(self, half_width: float) -> Self:
        """Return a copy with another, independent error added."""
        return self.model_copy(update={"relative_error": hypot(self.relative_error, half_width)})

    def reading(self, num_bytes: float) -> Self:
        """Return a copy whose calls read `num_bytes` each."""
        return self.model_copy(update={"bytes_per_call": num_bytes, "num_bytes": ()})


class Anchor(StrictModel):
    """Mean seconds of a one-row verification or draft step, with which the lane's other times were compared."""

    context: Count
    seconds: Annotated[Seconds, Field(gt=0)]
    relative_error: RelativeError = 0.0
