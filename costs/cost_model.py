"""What one call of a model part costs on one lane, be it one device or a group of devices that exchange results.

A cost model answers for whole ranges of contexts at once, and reports its errors and sources. Which parts an operation
calls is in `costs.round_plan`.
"""

from collections.abc import Iterator
from functools import cached_property
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.errors import OutOfRangeError, ProfileError
from decoding.schedule import MAX_WINDOW
from hwprofiles.lane_profile import PARTS, DeviceGroup
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
    """What else is known of a part: the error of all its times (half-width, 90 %), and their source.

    `most_positions` is how many tokens a sequence may have for the part's model; infinite where that is not known.
    """

    relative_error: float
    source: str
    most_positions: float = inf


class Own(NamedTuple):
    """What one sequence adds to a call by its cached tokens, at each context: bytes that a member moves, and seconds.

    The longer of the two counts, see `Shared`. Attention is a kernel of its own between the matrices: of several
    sequences one hides what it can behind these, as it does alone, and what the others take by themselves adds up.
    """

    num_bytes: Floats
    reading_s: Floats
    computing_s: Floats


class Shared(NamedTuple):
    """What the sequences of a call have in common: bytes that one member moves once, and the seconds without caches.

    A call takes as long as it reads or as it computes, whichever is longer; what neither hides counts in both, and a
    table, which does not tell them apart, has the same in both. `least_s` is the time of starting kernels, where that
    goes on beside what they do: no call takes less.
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
    """A cost model of one lane. `seconds` are those of `shared` with the `own` of a single sequence."""

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """Return seconds of one call with `rows` rows at each context (tokens in the cache), same shape as `contexts`.

        Raises `ProfileError` where the lane has no cost for the part, `OutOfRangeError` where rows or a context
        were not measured.
        """

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """Return why `seconds` would raise, or None."""

    def shared(self, part: Part, rows: float) -> Shared:
        """Return what a call over the rows of all its sequences costs once: reading weights, above all."""

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        """Return what one sequence adds with so many of the rows; to be asked for what is not `missing`."""

    def facts(self, part: Part) -> PartFacts:
        """Return what else is known of the part; raises `ProfileError` where the lane has no cost for it."""


def traffic(cost: LaneCost, part: Part, rows: float, contexts: Floats) -> Floats:
    """Return the bytes that one member of a lane moves in a call, at each context."""
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
    # wider passes of the target are those of trees and batches
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
    """Return the seconds after which every device has the sum of what all hold, by the faster of two algorithms.

    Ring: a reduce-scatter and an all-gather, each of n - 1 steps with an n-th of the bytes. Tree: sums go up a binomial
    tree and the result comes down again, all bytes on every level. Closed forms over links of equal latency and
    bandwidth; sources: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH
    (2005); the ring is NCCL's.
    """
    ring_s = 2 * (num_devices - 1) * (latency_s + num_bytes / num_devices / bytes_per_s)
    return min(ring_s, 2 * _num_levels(num_devices) * (latency_s + num_bytes / bytes_per_s))


def all_gather_s(num_bytes: float, num_devices: int, *, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds of sharing all shares: what is held doubles from step to step (Bruck, any count)."""
    return _num_levels(num_devices) * latency_s + (num_devices - 1) / num_devices * num_bytes / bytes_per_s


def _num_levels(num_devices: int) -> int:
    """Return the levels of a binary tree of `num_devices` below its root: ceil(log2)."""
    return (num_devices - 1).bit_length()


class GroupCost:
    """The cost of a lane of several devices: a member's share, and the collectives that all wait for."""

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
    """Return the cost of a lane, be it one device or several; `share` replaces what a member is measured to cost."""
    share = MeasuredCost(lane) if share is None else share
    return share if lane.group is None else GroupCost(share, lane.group)
