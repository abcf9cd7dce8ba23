"""Cost models: the time of one call of a model part on a lane, which is a device or a group that exchanges sums.

A cost model computes whole arrays of contexts at once, and tells its relative errors and sources. `costs.round_plan`
says which parts an operation calls.
"""

from collections.abc import Iterator
from functools import cached_property
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.errors import OutOfRangeError, ProfileError
from decoding.schedule import MAX_WINDOW
from hwprofiles.lane_profile import PARTS, DeviceGroup, LanePart, LaneProfile
from hwprofiles.latency_table import LatencyTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Part(NamedTuple):
    """A model part that is timed as a whole; each one has a table in a `LaneProfile`.

    `exit_layer` is set for `exit`, `drafter` for `heads`, `head_prefill` and `streams`.
    """

    kind: LanePart
    exit_layer: int | None = None
    drafter: str | None = None

    def __str__(self) -> str:
        if self.drafter is not None:
            return f"{'head step' if self.kind == 'heads' else self.kind.replace('_', ' ')} of {self.drafter}"
        return self.kind if self.exit_layer is None else f"{self.kind} after layer {self.exit_layer}"


class PartFacts(NamedTuple):
    """The relative error of a part's times (half-width, 90 %), their source, and the longest sequence of its model.

    `most_positions` is infinite if unknown.
    """

    relative_error: float
    source: str
    most_positions: float = inf


class Own(NamedTuple):
    """What the KV cache of one sequence adds to a call, at each context: bytes that a device moves, and seconds.

    The longer of `reading_s` and `computing_s` counts, see `Shared`. Attention is a kernel between the matrices: of the
    sequences of a batch, one overlaps with the matrices as it does alone, and the times of all others add up.
    """

    num_bytes: Floats
    reading_s: Floats
    computing_s: Floats


class Shared(NamedTuple):
    """What a call costs once for all its sequences: bytes that a device moves, and the seconds without KV caches.

    A call takes the longer of `reading_s` and `computing_s`. Time that overlaps with neither is in both, and a table,
    which does not tell them apart, has the same time in both. `least_s` is the time to launch the kernels if that
    overlaps with their work; no call takes less.
    """

    num_bytes: float
    reading_s: float
    computing_s: float
    least_s: float = 0.0

    def with_one(self, own: Own) -> Floats:
        """Return the seconds of a call of a single sequence, at each context."""
        working_s = np.maximum(self.reading_s + own.reading_s, self.computing_s + own.computing_s)
        return np.maximum(working_s, self.least_s)


class LaneCost(Protocol):
    """The cost model of a lane. `seconds` is for a single sequence; `shared` and `own` make up the cost of a batch."""

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """Return the seconds of one call of `rows` rows at each context (tokens in the cache), shaped as `contexts`.

        Raises `ProfileError` if the lane has no cost for the part, `OutOfRangeError` if rows or a context were not
        measured.
        """

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """Return why `seconds` would raise, or None."""

    def shared(self, part: Part, rows: float) -> Shared:
        """Return what a call of `rows` rows of all sequences costs once, mostly reading weights."""

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        """Return what one sequence with `rows` of the rows adds; only for parts that are not `missing`."""

    def facts(self, part: Part) -> PartFacts:
        """Return error and source of the part's times; raise `ProfileError` if the lane has no cost for it."""


def traffic(cost: LaneCost, part: Part, rows: float, contexts: Floats) -> Floats:
    """Return the bytes that a call moves on each device of a lane, at each context."""
    return cost.shared(part, rows).num_bytes + cost.own(part, rows, contexts).num_bytes


class MeasuredCost:
    """The tables of a lane's profile, interpolated linearly in rows and in context, never extrapolated."""

    def __init__(self, lane: LaneProfile) -> None:
        self._name, self._lane = lane.name, lane

    @cached_property
    def _tables(self) -> dict[Part, LatencyTable]:
        return dict(_tables_of(self._lane))

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        try:
            return self._table(part).along(rows, contexts)
        except OutOfRangeError as error:
            raise OutOfRangeError(self._beyond(part, rows, str(error))) from None

    def shared(self, part: Part, rows: float) -> Shared:
        """See `LaneCost`."""
        return Shared(*self._table(part).shared(rows))

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        """See `LaneCost`."""
        return Own(*self._table(part).own(rows, contexts))

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        table = self._tables.get(part)
        if table is None:
            known = ", ".join(map(str, self._tables)) or "nothing"
            return f"lane {self._name!r} has no measured {part}; measured there: {known}"
        reason = table.missing(rows, contexts)
        return None if reason is None else self._beyond(part, rows, reason)

    def _beyond(self, part: Part, rows: float, reason: str) -> str:
        option = _widened_by(part, rows) if rows > self._tables[part].rows[-1] else None
        wider = f"; calibrate's is wider by a larger {option}" if option else ""
        return f"{part} on lane {self._name!r}: {reason}{wider}"

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`."""
        table = self._table(part)
        return PartFacts(table.relative_error, table.source, table.most_positions or inf)

    def _table(self, part: Part) -> LatencyTable:
        if part not in self._tables:
            raise ProfileError(self.missing(part, 0, np.zeros(1)))
        return self._tables[part]


def _widened_by(part: Part, rows: float) -> str | None:
    """Return the option of `mirrorsd calibrate` that measures a part over so many rows; None where there is none."""
    if part.kind in ("draft_step", "draft_step_features", "draft_start"):
        return "--max-branches"
    # no option widens passes of trees and batches, which have more rows
    return "--max-window" if part.kind in ("layer", "lm_head", "exit") and rows <= MAX_WINDOW + 1 else None


def _tables_of(lane: LaneProfile) -> Iterator[tuple[Part, LatencyTable]]:
    """Yield every table of a lane with its part."""
    for kind in PARTS:
        found = getattr(lane, kind)
        if isinstance(found, LatencyTable):
            yield Part(kind), found
        elif found is not None:
            for key, table in found.items():
                yield (Part(kind, key) if kind == "exit" else Part(kind, drafter=key)), table


def all_reduce_s(num_bytes: float, num_devices: int, *, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds of an all-reduce by the faster of two algorithms, over links of equal latency and bandwidth.

    Ring (NCCL's): a reduce-scatter and an all-gather, each of n - 1 steps with an n-th of the bytes. Tree: sums go up a
    binomial tree and the result comes down again, all bytes on every level. Source: Thakur, Rabenseifner and Gropp,
    Optimization of Collective Communication Operations in MPICH (2005).
    """
    ring_s = 2 * (num_devices - 1) * (latency_s + num_bytes / num_devices / bytes_per_s)
    return min(ring_s, 2 * _num_levels(num_devices) * (latency_s + num_bytes / bytes_per_s))


def all_gather_s(num_bytes: float, num_devices: int, *, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds of an all-gather by Bruck's algorithm (any count): a device's bytes double with each step."""
    return _num_levels(num_devices) * latency_s + (num_devices - 1) / num_devices * num_bytes / bytes_per_s


def _num_levels(num_devices: int) -> int:
    """Return ceil(log2(num_devices))."""
    return (num_devices - 1).bit_length()


class GroupCost:
    """The cost of a lane of several devices: that of one device's share, and the collectives."""

    def __init__(self, share: LaneCost, group: DeviceGroup) -> None:
        self._share = share
        self._group = group

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        return self._share.seconds(part, rows, contexts) + sum(self.collectives_s(part, rows))

    def shared(self, part: Part, rows: float) -> Shared:
        """See `LaneCost`."""
        num_bytes, *seconds = self._share.shared(part, rows)
        collectives_s = sum(self.collectives_s(part, rows))
        return Shared(num_bytes, *(one + collectives_s for one in seconds))

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        """See `LaneCost`."""
        return self._share.own(part, rows, contexts)

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        return self._share.missing(part, rows, contexts)

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`."""
        return self._share.facts(part)

    def collectives_s(self, part: Part, rows: float) -> tuple[float, ...]:
        """Return the seconds of each collective of one call, in order."""
        group = self._group
        speed = {"latency_s": group.latency_s, "bytes_per_s": group.bytes_per_s}
        reduced_bytes, gathered_bytes = rows * group.reduced_bytes_per_row, rows * group.gathered_bytes_per_row
        reduce_s = all_reduce_s(reduced_bytes, group.num_devices, **speed)
        gather_s = all_gather_s(gathered_bytes, group.num_devices, **speed)
        return (reduce_s,) * group.all_reduces.get(part.kind, 0) + (gather_s,) * group.all_gathers.get(part.kind, 0)


def cost_of(lane: LaneProfile, share: LaneCost | None = None) -> LaneCost:
    """Return the cost of a lane of one device or a group; `share` replaces the measured cost of one device's share."""
    share = MeasuredCost(lane) if share is None else share
    return share if lane.group is None else GroupCost(share, lane.group)
