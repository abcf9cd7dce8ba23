"""Splits the measured times of whole operations into the times of parts, and makes latency tables of them.

Parts sum to the operations: verify = layers + `lm_head`, prefix = layers up to the exit + exit, suffix = remaining
layers + `lm_head`. The `lm_head` and exits read their weights once and do equal work for each row, so their times are
fitted by straight lines over the rows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, linear_regression
from typing import NamedTuple

import numpy as np

from calibrate.fitting.noise import between, cliffs, rising
from calibrate.fitting.ratios import Estimate
from hwprofiles.bounds import MOST_IN_A_TABLE
from hwprofiles.latency_table import LatencyTable

Size = tuple[int, int]
"""(rows, context)."""
Slots = Mapping[int, int]
"""Number of KV slots that attention runs over, including empty ones, by the contexts of a table, ascending."""


def slots_between(contexts: Collection[int], num_slots: Callable[[int], int]) -> Slots:
    """Return the slots at some contexts, and on both sides of each jump of `num_slots` between them."""
    places = set(contexts)
    for at in range(min(contexts), max(contexts)):
        if num_slots(at + 1) > num_slots(at) + 1:
            places |= {at, at + 1}
    return {at: num_slots(at) for at in sorted(places)}


def fit_table(times: Mapping[Size, Estimate], error: float, source: str, slots: Slots | None = None) -> LatencyTable:
    """Return the table of an operation from its times by (rows, context); a single context stands for any context."""
    rows, contexts = dict.fromkeys(count for count, _ in times), {context for _, context in times}
    if slots is None or len(contexts) == 1:
        slots = {context: context for context in sorted(contexts)}
    return make_table(rows, list(slots), grow(times, rows, slots), error, source)


class TargetTimes(NamedTuple):
    """Times of whole verifications, and mean seconds by rows of the `lm_head` and of an exit."""

    verify: Mapping[Size, Estimate]
    lm_head: Mapping[int, float]
    exits: Mapping[int, float]


def fit_target(
    times: TargetTimes,
    *,
    num_layers: int,
    anchor: tuple[Size, float] | None,
    slots: Slots,
    error: float,
    source: str,
) -> tuple[LatencyTable, LatencyTable, LatencyTable | None]:
    """Return the tables of a layer, of the `lm_head`, and of an exit (None without exits).

    Layers take the time of a verification minus that of the `lm_head`; only layers depend on the context. `anchor`:
    size and seconds (without noise) of the verification that all times were compared with.
    """
    verify, lm_head, exits = times
    rows = sorted({size[0] for size in verify})
    whole_s = grow(verify, rows, slots, anchor)
    base_s = {count: line[0] for count, line in zip(rows, whole_s, strict=True)}
    head_s = _within(_straight(lm_head, rows), base_s)

    def table(seconds: Mapping[int, float]) -> LatencyTable:
        return make_table(rows, (0,), [[seconds[count]] for count in rows], error, source)

    layers_s = [
        [(seconds - head_s[count]) / num_layers for seconds in line] for count, line in zip(rows, whole_s, strict=True)
    ]
    # if the `lm_head` takes the whole pass, only rounding errors are left for the layers: they count as 0
    least_s = max(map(max, layers_s)) / MOST_IN_A_TABLE
    layers_s = [[seconds if seconds > least_s else 0.0 for seconds in line] for line in layers_s]
    exit_table = table(_straight(exits, rows)) if exits else None
    return make_table(rows, list(slots), layers_s, error, source), table(head_s), exit_table


def make_table(
    rows: Collection[int], contexts: Sequence[int], lines: Sequence[Sequence[float]], error: float, source: str
) -> LatencyTable:
    """Return a latency table of `lines` [rows][contexts]; `error`: its relative error (half-width, 90 %)."""
    return LatencyTable(
        rows=tuple(rows),
        contexts=tuple(contexts),
        seconds=tuple(map(tuple, lines)),
        relative_error=error,
        source=source,
    )


def grow(
    times: Mapping[Size, Estimate],
    rows: Iterable[int],
    slots: Slots,
    known: tuple[Size, float] | None = None,
) -> list[list[float]]:
    """Return seconds [rows][contexts], from times of all row counts at the first context and of some at other contexts.

    More rows never take less time, except where repeated visits agree that they do (`calibrate.fitting.noise`). A
    longer context adds (once + each * rows) * added slots, because the slots' keys are read once and each row is
    compared with them. Both coefficients are fitted to all sizes at once, since this term is a few percent of an
    operation, less than the noise of a single size. `known`: a size whose time has no noise; the growth over slots is
    bent for all rows so that it meets this time.
    """
    first = min(slots)
    added = {
        (count, slots[context] - slots[first]): one.value - times[count, first].value
        for (count, context), one in times.items()
        if slots[context] > slots[first] and (count, first) in times
    }
    once, each = _growth(added)
    timed = {count: times[count, first] for count in rows}
    base, cuts = {count: one.value for count, one in timed.items()}, cliffs(timed)
    known_rows, worth = None, [float(count - slots[first]) for count in slots.values()]
    if known is not None:
        (known_rows, _), _ = known
        base[known_rows], worth = _through(known, base[known_rows], once + each * known_rows, slots)
    for stretch in between(list(base), cuts):
        base |= rising({count: base[count] for count in stretch}, known=known_rows)
    return [[seconds + (once + each * count) * one for one in worth] for count, seconds in base.items()]


def _through(known: tuple[Size, float], first_s: float, slope: float, slots: Slots) -> tuple[float, list[float]]:
    """Return the seconds at the first context, and the added slots that each context counts as, so as to meet `known`.

    The first context keeps its timed seconds, unless their distance from the known time exceeds the whole growth.
    """
    (_, context), seconds = known
    first, *_, last = counts = list(slots.values())
    first_s = min(max(first_s, seconds - slope * (last - first)), seconds)
    if slots[context] == first or not slope:
        return seconds, [float(count - first) for count in counts]
    points = {first: 0.0, last: float(last - first), slots[context]: (seconds - first_s) / slope}
    return first_s, np.interp(counts, sorted(points), [points[one] for one in sorted(points)]).tolist()


def _within(head_s: Mapping[int, float], whole_s: Mapping[int, float]) -> dict[int, float]:
    """Limit the `lm_head`'s time and growth to the whole operation's, since the layers' share never falls with rows."""
    first, *_ = whole_s
    found = {first: min(head_s[first], whole_s[first])}
    for before, count in pairwise(whole_s):
        more_s, whole_more_s = head_s[count] - head_s[before], whole_s[count] - whole_s[before]
        grown_s = found[before] + (min(more_s, whole_more_s) if whole_more_s >= 0 else more_s)
        found[count] = min(grown_s, whole_s[count])
    return found


def _straight(points: Mapping[int, float], rows: Sequence[int]) -> dict[int, float]:
    """Return the values at `rows` of the least-squares line through the points, without negative values or slope."""
    middle = fmean(points.values())
    if len(points) == 1:
        return dict.fromkeys(rows, max(0.0, middle))
    slope, start = linear_regression(list(points), list(points.values()))
    if slope < 0:
        slope, start = 0.0, max(0.0, middle)
    elif start < 0:
        slope, start = max(0.0, middle / fmean(points)), 0.0
    return {count: start + slope * count for count in rows}


def _growth(added: Mapping[Size, float]) -> tuple[float, float]:
    """Fit the coefficients (once, each) of `grow`, both at least 0, to added seconds by (rows, added slots)."""
    if not added:
        return 0.0, 0.0
    design = np.array([(span, rows * span) for rows, span in added], dtype=np.float64)
    seconds, fits = np.array(list(added.values())), list[tuple[float, float, float]]()
    for kept in ([0, 1], [0], [1]):
        found = np.zeros(2)
        found[kept] = np.linalg.lstsq(design[:, kept], seconds, rcond=None)[0]
        if found.min() >= 0:
            fits.append((float(((design @ found - seconds) ** 2).sum()), float(found[0]), float(found[1])))
    _, once, each = min(fits, key=itemgetter(0), default=(0.0, 0.0, 0.0))
    return once, each
