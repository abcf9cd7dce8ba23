"""Tables of a profile that go on beyond the lengths that they were calibrated for, and are less certain by that.

They go on in a straight line over KV slots, by which attention takes longer. The slope of the line is off by what the
ends of the table may be off by, and by `_BENDING`: what that makes of a time grows with the distance.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from math import hypot
from typing import Final, NamedTuple

import numpy as np

from calibrate.fitting.fit import Slots, slots_between
from costs.cost_model import Ints
from decoding.record import AcceptanceRecord
from hwprofiles.lane_profile import DECODING_PARTS, LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Profile
from mirrorsd.simulation import device_of

_BENDING: Final = 0.3
"""What a slope changes by beyond its table, relative (half-width, 90 %). Eleven calibrations of benchmarks/results
(demos, held-out, as of 29 November 2026) time 33 lanes at three contexts: by the first two the third is within the
interval in 31 with this, in 27 without."""

_MOST_ADDED: Final = 0.5
"""Error that a slope may add to a time, relative: with more of it the slope is noise, and what is far below the
predicted time lies in no interval that is a factor either way."""


class Tokens(NamedTuple):
    """Contexts in which tokens of a record were found, ascending, and how many in each."""

    contexts: Ints
    counts: Ints

    @classmethod
    def of(cls, record: AcceptanceRecord, most: int | None = None) -> "Tokens":
        """Count the tokens of all texts, each cut to `most`."""
        texts = [one.prompt_length - 1 + np.arange(len(one.text[:most])) for one in record.prompts]
        return cls(*np.unique(np.concatenate(texts), return_counts=True))

    def share_outside(self, first: int, last: int) -> float:
        """Return how many are in none of these contexts, relative."""
        return float(self.counts[(self.contexts < first) | (self.contexts > last)].sum() / self.counts.sum())


def with_longer_tables(profile: Profile, lanes: Collection[str], tokens: Tokens) -> Profile:
    """Return the profile with the tables of some lanes continued to the contexts of all tokens.

    Those stay that are in one number of slots throughout or have a slope of noise, as nothing tells what more take, and
    those of batches.
    """
    continued = (_Longer(lane, tokens).lane if lane.name in lanes else lane for lane in profile.lanes)
    return profile.model_copy(update={"lanes": tuple(continued)})


class _Longer:
    """The tables of a lane, continued."""

    def __init__(self, lane: LaneProfile, tokens: Tokens) -> None:
        device = device_of(lane)
        self._slots: Callable[[int], int] = cache(lambda context: device.num_slots(context + 1))
        self._between: Callable[[int, int], Slots] = cache(lambda *ends: slots_between(ends, self._slots))
        self._tokens = tokens
        self.lane = lane.changed(dict.fromkeys(DECODING_PARTS), lambda table, _: self._continued(table))

    def _continued(self, table: LatencyTable) -> LatencyTable:
        first, last = table.contexts[0], table.contexts[-1]
        least, most = min(first, int(self._tokens.contexts[0])), max(last, int(self._tokens.contexts[-1]))
        is_within = first == last or (least, most) == (first, last)
        is_known = self._span(table) or (self._slots(least), self._slots(most)) == (
            self._slots(first),
            self._slots(last),
        )
        if is_within or not is_known or table.batch is not None:
            return table
        before = {at: count - self._slots(first) for at, count in self._between(least, first).items() if at < first}
        after = {at: count - self._slots(last) for at, count in self._between(last, most).items() if at > last}

        def go_on(lines: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
            sloping = [(line, self._slope(table, line)) for line in lines]
            return tuple(
                (
                    *(max(0.0, line[0] + slope * more) for more in before.values()),
                    *line,
                    *(line[-1] + slope * more for more in after.values()),
                )
                for line, slope in sloping
            )

        grids = {"seconds": go_on(table.seconds), "num_bytes": go_on(table.num_bytes)}
        longer = table.model_copy(update={"contexts": (*before, *table.contexts, *after), **grids})
        added = self._added_error(table, longer)
        return longer.less_certain(added) if added <= _MOST_ADDED else table

    def _span(self, table: LatencyTable) -> int:
        return self._slots(table.contexts[-1]) - self._slots(table.contexts[0])

    def _slope(self, table: LatencyTable, line: Sequence[float]) -> float:
        """Return what a line of the table grows by with each slot, by its ends; nothing where it falls."""
        return max(0.0, line[-1] - line[0]) / max(1, self._span(table))

    def _added_error(self, table: LatencyTable, longer: LatencyTable) -> float:
        """Return what slopes make the mean time of the tokens off by, relative, at the rows where that is most."""
        contexts, counts = self._tokens
        first, last = self._slots(table.contexts[0]), self._slots(table.contexts[-1])
        slots = [self._slots(at) for at in contexts.tolist()]
        mean_beyond = float(np.average([max(first - one, one - last, 0) for one in slots], weights=counts))
        errors = []
        for rows, line in zip(table.rows, table.seconds, strict=True):
            by_ends = table.relative_error * hypot(line[0], line[-1]) / max(1, self._span(table))
            error = hypot(by_ends, _BENDING * self._slope(table, line))
            mean_s = float(np.average(longer.along(rows, contexts.astype(np.float64)), weights=counts))
            errors.append(error * mean_beyond / mean_s if mean_s else 0.0)
        return max(errors)
