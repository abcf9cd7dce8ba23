"""Heads and streams of a target, and prompt lookup: steps timed on every lane one after the other, and their tables.

A lane holds one drafter at a time, so heads take turns among the lanes and not with the target's parts. What a
longer context adds to a single layer is less than the noise: heads are timed at one. In a loop a head stays in the
processor's cache, which the target empties in every round: short decodings measure what a step takes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, NamedTuple

from calibrate.profiling.decodings import Run, decode, rollout_level
from calibrate.profiling.fit import make_table
from calibrate.profiling.grid import Effort
from calibrate.profiling.noise import Noise, spread
from calibrate.profiling.placements import head_schedules
from calibrate.profiling.time_budget import Passes
from calibrate.profiling.visits import Cell, Samples, visit_in_turn
from decoding.methods import METHODS
from decoding.schedule import Method, Schedule
from hwprofiles.bounds import MOST_RELATIVE_ERROR
from hwprofiles.placement import PlacedLane
from hwprofiles.profile import LatencyTable
from runtime.engine import Engine
from runtime.wire.measurement import Measurement, Part

_REPEATS: Final = 3
_STREAM_REPEATS: Final = 5
_FIND_REPEATS: Final = 200
_STREAMING: Final[tuple[Part, Part]] = ("verify_tree", "stream")
"""The target's pass without its streams and with them."""
_STREAM_ROWS: Final = 6
"""Streams follow the last accepted row: how many were verified makes no difference."""


class HeadTables(NamedTuple):
    """Tables of one lane by the drafter's name: steps of heads, and what streams add to a verification."""

    heads: dict[str, LatencyTable]
    streams: dict[str, LatencyTable]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadParts:
    """How heads are timed.

    Attributes:
        effort: sizes, and length of the texts decoded.
        contexts: the fewest and the most cached tokens of schedules.
        is_quick: whether fewer placements will do.
        most_rows: rows of the widest verification of a schedule.
        source: origin of the numbers, as the tables name it.
    """

    effort: Effort
    contexts: tuple[int, int]
    is_quick: bool
    most_rows: int
    source: str

    def head_cells(self, lane: str) -> Iterator[Cell]:
        """Steps of the head that a lane has loaded."""
        return (Cell(lane, self._at("head_step", rows)) for rows in self.effort.head_rows)

    def stream_cells(self, lane: str) -> Iterator[Cell]:
        """Passes of a target that has loaded its streams, with and without them, one after the other."""
        return (Cell(lane, self._at(part, _STREAM_ROWS, _STREAM_REPEATS)) for part in _STREAMING)

    def find_cell(self, lane: str) -> Cell:
        """A step of a drafter without a model, which is one row whatever it finds."""
        return Cell(lane, self._at("head_step", 1, _FIND_REPEATS))

    def find_table(self, lane: str, samples: Samples) -> LatencyTable:
        """The table of such a drafter, for any context: its search takes the same time in every text."""
        taken = samples.seconds[self.find_cell(lane)]
        return make_table((1,), (0,), [[median(taken)]], relative_error=spread([taken]), source=self.source)

    def head_table(self, lane: str, samples: Samples) -> LatencyTable:
        """The table of a head from the times of a lane's cells, for any context."""
        rows = self.effort.head_rows
        taken = [samples.seconds[cell] for cell in self.head_cells(lane)]
        noise = Noise.of(taken)
        medians = {count: median(seconds) for count, seconds in zip(rows, taken, strict=True)}
        lines = [[seconds] for seconds in noise.smoothed(medians).values()]
        return make_table(rows, (0,), lines, relative_error=noise.relative_error, source=self.source)

    def streams_table(self, lane: str, samples: Samples) -> LatencyTable:
        """What streams add, for any rows in any context; nothing where, by noise, they seem to save time."""
        less, more = (samples.seconds[cell] for cell in self.stream_cells(lane))
        added_s = max(0.0, median(more) - median(less))
        noise_s = spread([less, more]) * median(less)
        return make_table(
            (1, self.most_rows),
            (0,),
            [[added_s], [added_s]],
            relative_error=min(noise_s / added_s, MOST_RELATIVE_ERROR) if added_s else 0.0,
            source=self.source,
        )

    def decode(self, engine: Engine, schedule: Schedule) -> Run:
        """A short text by a head: half as long as others, since all rounds are alike, and after a short prompt."""
        num_tokens, first = self.effort.run_tokens // 2, self.contexts[0]
        return decode(engine, schedule, (first, min(first + num_tokens, self.contexts[1])), num_tokens)

    def _at(self, part: Part, rows: int, repeats: int = _REPEATS) -> Measurement:
        return Measurement(part=part, rows=rows, context=self.effort.contexts[0], repeats=repeats, warm_up=1)


def measure_heads(
    engine: Engine,
    lanes: Sequence[PlacedLane],
    methods: Mapping[str, Method],
    parts: HeadParts,
    new_passes: Callable[[], Passes],
) -> dict[str, HeadTables]:
    """Tables of every lane by name. Each holds the target already; the last head stays loaded.

    Args:
        engine: lanes and models.
        lanes: where to time.
        methods: the heads by name, and the method that each is for.
        parts: what is timed.
        new_passes: how often, asked for every head.

    Raises:
        LaneError: a lane was lost.
        ModelError: a head cannot be loaded.
    """
    names = [lane.name for lane in lanes]
    tables = {name: HeadTables({}, {}) for name in names}
    for drafter, method in methods.items():
        if METHODS[method].drafts_itself:
            loaded = {lane: engine.load_streams(lane, drafter) for lane in names}
            samples = visit_in_turn(loaded, _cells(names, parts.stream_cells), passes=new_passes())
            for lane in names:
                tables[lane].streams[drafter] = parts.streams_table(lane, samples)
        elif METHODS[method].finds_text:
            loaded = {lane: engine.load_draft(lane, drafter) for lane in names}
            samples = visit_in_turn(loaded, [parts.find_cell(lane) for lane in names], passes=new_passes())
            for lane in names:
                tables[lane].heads[drafter] = parts.find_table(lane, samples)
        else:
            loaded = {lane: engine.load_draft(lane, drafter) for lane in names}
            samples = visit_in_turn(loaded, _cells(names, parts.head_cells), passes=new_passes())
            in_loop = {lane: parts.head_table(lane, samples) for lane in names}
            schedules = head_schedules(lanes, drafter, method, is_quick=parts.is_quick)
            runs = [parts.decode(engine, schedule) for schedule in schedules]
            for lane, level in _levels(lanes, runs, in_loop).items():
                tables[lane].heads[drafter] = in_loop[lane].scaled(level)
    return tables


def _levels(lanes: Sequence[PlacedLane], runs: Sequence[Run], in_loop: Mapping[str, LatencyTable]) -> dict[str, float]:
    """What steps take in a real run over what they take in a loop, by lane.

    A lane without a run is as others with as many threads are, or as all others.
    """
    found: dict[str, list[float]] = {lane.name: [] for lane in lanes}
    for run in runs:
        lane = run.schedule.draft_lane or ""
        level = rollout_level(run, in_loop[lane])
        found[lane] += [] if level is None else [level]

    def level_of(lane: PlacedLane) -> float:
        alike = [level for other in lanes if other.num_threads == lane.num_threads for level in found[other.name]]
        everywhere = [level for levels in found.values() for level in levels]
        return fmean(found[lane.name] or alike or everywhere or [1.0])

    return {lane.name: level_of(lane) for lane in lanes}


def _cells(lanes: Sequence[str], of_lane: Callable[[str], Iterator[Cell]]) -> list[Cell]:
    return [cell for lane in lanes for cell in of_lane(lane)]
