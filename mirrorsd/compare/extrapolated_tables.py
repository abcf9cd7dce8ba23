"""Extrapolates the tables of a profile to lengths that were not calibrated, with a larger error.

Times are extrapolated linearly in KV slots, with which the time of attention grows. The slope's error combines the
errors of the table's ends and `_BENDING`; the error of an extrapolated time grows with the distance.
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
"""How much a slope may change beyond its table (relative half-width, 90 %). Eleven calibrations of benchmarks/results
(demos, held-out, as of 29 November 2026) time 33 lanes at three contexts. Extrapolated from the first two, the third is
within the interval in 31 lanes with this value, and in 27 without."""

_MOST_ADDED: Final = 0.5
"""Tables are not extrapolated if the slope would add a larger relative error: then the slope is mostly noise."""


class Tokens(NamedTuple):
    """The contexts (cached tokens) of a record's tokens, ascending, and the number of tokens in each."""

    contexts: Ints
    counts: Ints

    @classmethod
    def of(cls, record: AcceptanceRecord, most: int | None = None) -> "Tokens":
        """Count the tokens of all texts, each cut to `most` tokens."""
        texts = [one.prompt_length - 1 + np.arange(len(one.text[:most])) for one in record.prompts]
        return cls(*np.unique(np.concatenate(texts), return_counts=True))

    def share_outside(self, first: int, last: int) -> float:
        """Return the share of tokens with contexts outside `first` to `last`."""
        return float(self.counts[(self.contexts < first) | (self.contexts > last)].sum() / self.counts.sum())


def with_longer_tables(profile: Profile, lanes: Collection[str], tokens: Tokens) -> Profile:
    """Return the profile with the tables of some lanes extrapolated to the contexts of all tokens.

    Tables of batches, and tables whose slope is unknown (a single number of slots) or mostly noise, do not change.
    """
    longer = (_Longer(lane, tokens).lane if lane.name in lanes else lane for lane in profile.lanes)
    return profile.model_copy(update={"lanes": tuple(longer)})


class _Longer:
    """Extrapolates the tables of one lane; `lane` is the result."""

    def __init__(self, lane: LaneProfile, tokens: Tokens) -> None:
        device = device_of(lane)
        self._slots: Callable[[int], int] = cache(lambda context: device.num_slots(context + 1))
        self._between: Callable[[int, int], Slots] = cache(lambda *ends: slots_between(ends, self._slots))
        self._tokens = tokens
        self.lane = lane.changed(dict.fromkeys(DECODING_PARTS), lambda table, _: self._extrapolated(table))

    def _extrapolated(self, table: LatencyTable) -> LatencyTable:
        first, last = table.contexts[0], table.contexts[-1]
        least, most = min(first, int(self._tokens.contexts[0])), max(last, int(self._tokens.contexts[-1]))
        is_covered = first == last or (least, most) == (first, last)
        needs_no_slope = self._slots(least) == self._slots(first) and self._slots(most) == self._slots(last)
        if is_covered or not (self._span(table) or needs_no_slope) or table.batch is not None:
            return table
        before = {at: count - self._slots(first) for at, count in self._between(least, first).items() if at < first}
        after = {at: count - self._slots(last) for at, count in self._between(last, most).items() if at > last}

        def extrapolate(lines: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
            with_slopes = [(line, self._slope(table, line)) for line in lines]
            return tuple(
                (
                    *(max(0.0, line[0] + slope * more) for more in before.values()),
                    *line,
                    *(line[-1] + slope * more for more in after.values()),
                )
                for line, slope in with_slopes
            )

        grids = {"seconds": extrapolate(table.seconds), "num_bytes": extrapolate(table.num_bytes)}
        longer = table.model_copy(update={"contexts": (*before, *table.contexts, *after), **grids})
        added = self._added_error(table, longer)
        return longer.less_certain(added) if added <= _MOST_ADDED else table

    def _span(self, table: LatencyTable) -> int:
        return self._slots(table.contexts[-1]) - self._slots(table.contexts[0])

    def _slope(self, table: LatencyTable, line: Sequence[float]) -> float:
        """Return by how much a line of the table grows per slot, from its ends; 0 if it falls."""
        return max(0.0, line[-1] - line[0]) / max(1, self._span(table))

    def _added_error(self, table: LatencyTable, longer: LatencyTable) -> float:
        """Return the relative error that slopes add to the mean time of a token, for the rows with the largest one."""
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
