"""What one call of a model part costs on one lane.

A cost model answers for whole ranges of contexts at once, and reports how sure it is and where it knows that from.
What an operation is made of lives in `costs.durations`.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.errors import OutOfRangeError, ProfileError
from hwprofiles.lane_profile import PARTS
from hwprofiles.profile import LanePart, LaneProfile, LatencyTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Part(NamedTuple):
    """A model part that is timed as a whole: a table of a `LaneProfile`.

    `exit_layer` distinguishes the exits, `drafter` the steps of heads, what heads read of a prompt and the target's
    streams.
    """

    kind: LanePart
    exit_layer: int | None = None
    drafter: str | None = None

    def __str__(self) -> str:
        if self.drafter is not None:
            return f"{'head step' if self.kind == 'heads' else self.kind.replace('_', ' ')} of {self.drafter}"
        return self.kind if self.exit_layer is None else f"{self.kind} after layer {self.exit_layer}"


class PartFacts(NamedTuple):
    """What else is known of a part: what all its times may be off by, traffic of one call, origin of the numbers."""

    relative_error: float
    bytes_per_call: float
    source: str


class LaneCost(Protocol):
    """A cost model of one lane."""

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """Seconds of one call with `rows` rows at each context (tokens in the cache), same shape as `contexts`.

        Raises:
            ProfileError: the lane has no cost for the part.
            OutOfRangeError: rows or a context were not measured.
        """
        ...

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """Return why `seconds` would raise, or None."""
        ...

    def facts(self, part: Part) -> PartFacts:
        """Return what else is known of the part.

        Raises:
            ProfileError: the lane has no cost for the part.
        """
        ...


class MeasuredCost:
    """The tables of a lane's profile, interpolated linearly in rows and in context, never extrapolated."""

    def __init__(self, lane: LaneProfile) -> None:
        self._name = lane.name
        self._tables = dict(_tables_of(lane))
        if lane.draft_start is None and lane.draft_step_features is not None:
            # profiles without `draft_start`: the step with features stands in for it
            self._tables[Part("draft_start")] = lane.draft_step_features

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        table = self._table(part)
        if reason := self.missing(part, rows, contexts):
            raise OutOfRangeError(reason)
        return table.along(rows, contexts)

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        table = self._tables.get(part)
        if table is None:
            known = ", ".join(map(str, self._tables)) or "nothing"
            return f"lane {self._name!r} has no measured {part}; measured there: {known}"
        reason = table.missing(rows, contexts)
        return None if reason is None else f"{part} on lane {self._name!r}: {reason}"

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`."""
        table = self._table(part)
        return PartFacts(table.relative_error, table.bytes_per_call, table.source)

    def _table(self, part: Part) -> LatencyTable:
        if part not in self._tables:
            raise ProfileError(self.missing(part, 0, np.zeros(1)))
        return self._tables[part]


def _tables_of(lane: LaneProfile) -> Iterator[tuple[Part, LatencyTable]]:
    """Yield every table of a lane with its part."""
    for kind in PARTS:
        found = getattr(lane, kind)
        if isinstance(found, LatencyTable):
            yield Part(kind), found
        elif found is not None:
            for key, table in found.items():
                yield (Part(kind, key) if kind == "exit" else Part(kind, drafter=key)), table
