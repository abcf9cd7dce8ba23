"""From times of whole operations to the parts that a latency model adds up.

The parts are chosen so that their sums are the operations again: verify = layers + head, prefix = layers up to
the exit + exit, suffix = the other layers + head. What was measured is thus reproduced, and only what lies
between the measured sizes is interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from hwprofiles.profile import LatencyTable

Size = tuple[int, int]
"""(rows, context)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetTimes:
    """Median seconds of the target's operations on one lane.

    Attributes:
        verify: by (rows, context).
        prefix: by exit layer and rows, at the first context.
        suffix: by rows, likewise, behind `suffix_layer` layers.
        suffix_layer: layers done before the suffix that was timed.
    """

    verify: Mapping[Size, float]
    prefix: Mapping[int, Mapping[int, float]]
    suffix: Mapping[int, float]
    suffix_layer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetTables:
    """The target's parts on one lane."""

    layer: LatencyTable
    head: LatencyTable
    exits: dict[int, LatencyTable]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneTables:
    """The parts of both models on one lane; None where there is no draft, or none with features."""

    target: TargetTables
    draft_step: LatencyTable | None = None
    draft_step_features: LatencyTable | None = None

    def levelled(self, *, target: float, step: float, features_step: float) -> LaneTables:
        """The tables with all times multiplied, by one factor for each model and kind of step."""
        return LaneTables(
            target=TargetTables(
                layer=_scaled(self.target.layer, target),
                head=_scaled(self.target.head, target),
                exits={layer: _scaled(table, target) for layer, table in self.target.exits.items()},
            ),
            draft_step=self.draft_step and _scaled(self.draft_step, step),
            draft_step_features=self.draft_step_features and _scaled(self.draft_step_features, features_step),
        )


def fit_target(
    times: TargetTimes, num_layers: int, contexts: Sequence[int], *, relative_error: float, source: str
) -> TargetTables:
    """The parts whose sums are the operations timed; only layers depend on the context.

    One layer is what verify takes beyond suffix, divided by the layers in between; head and exits are what then
    is left of verify and prefix.
    """
    rows = sorted({size[0] for size in times.verify})
    first = contexts[0]
    layer_s = {count: _one_layer_s(times, count, first, num_layers) for count in rows}
    head_s = [max(0.0, times.verify[count, first] - num_layers * layer_s[count]) for count in rows]
    exits_s = {
        layer: [max(0.0, taken[count] - layer * layer_s[count]) for count in rows]
        for layer, taken in times.prefix.items()
    }
    whole_s = grow(times.verify, rows, contexts)
    layers_s = [
        [layer_s[count] + (seconds - line[0]) / num_layers for seconds in line]
        for count, line in zip(rows, whole_s, strict=True)
    ]

    def table(lines: Sequence[Sequence[float]], at: Sequence[int]) -> LatencyTable:
        return make_table(rows, at, lines, relative_error=relative_error, source=source)

    return TargetTables(
        layer=table(layers_s, contexts),
        head=table([[seconds] for seconds in head_s], (0,)),
        exits={layer: table([[seconds] for seconds in line], (0,)) for layer, line in exits_s.items()},
    )


def grow(times: Mapping[Size, float], rows: Sequence[int], contexts: Sequence[int]) -> list[list[float]]:
    """Seconds [rows][contexts] from times at every row count for the first context, and at some for the others.

    What a longer context adds is interpolated linearly between the row counts that were timed there.
    """
    lines = []
    for count in rows:
        base_s = times[count, contexts[0]]
        lines.append([base_s + _added(times, count, context, contexts[0]) for context in contexts])
    return lines


def make_table(
    rows: Sequence[int],
    contexts: Sequence[int],
    lines: Sequence[Sequence[float]],
    *,
    relative_error: float,
    source: str,
) -> LatencyTable:
    """A latency table of plain numbers."""
    return LatencyTable(
        rows=tuple(rows),
        contexts=tuple(contexts),
        seconds=tuple(map(tuple, lines)),
        relative_error=relative_error,
        source=source,
    )


def spread(samples: Iterable[Sequence[float]]) -> float:
    """Half-width of the central 50 % of each list over its median, averaged over the lists."""
    widths = []
    for seconds in samples:
        if len(seconds) > 1:
            lower, _, upper = quantiles(seconds, n=4, method="inclusive")
            widths.append((upper - lower) / 2 / median(seconds))
    return fmean(widths) if widths else 0.0


def _one_layer_s(times: TargetTimes, rows: int, context: int, num_layers: int) -> float:
    """One layer, between nothing and a share that leaves nothing for the head: noise may suggest more."""
    verify_s = times.verify[rows, context]
    return min(max(0.0, (verify_s - times.suffix[rows]) / times.suffix_layer), verify_s / num_layers)


def _scaled(table: LatencyTable, factor: float) -> LatencyTable:
    lines = tuple(tuple(seconds * factor for seconds in line) for line in table.seconds)
    return LatencyTable(**table.model_dump(exclude={"seconds"}), seconds=lines)


def _added(times: Mapping[Size, float], rows: int, context: int, first: int) -> float:
    """What `context` takes more than the first context, for a row count that may not have been timed there.

    Never less than nothing: more keys are more work, and what says otherwise is noise.
    """
    known = sorted(count for count, at in times if at == context and (count, first) in times)
    below = max((count for count in known if count <= rows), default=known[0])
    above = min((count for count in known if count >= rows), default=known[-1])
    low, high = (times[count, context] - times[count, first] for count in (below, above))
    share = (rows - below) / (above - below) if above > below else 0.0
    return max(0.0, low + share * (high - low))
