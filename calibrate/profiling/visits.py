"""Visits every part of every lane in turn, again and again, each between anchors of its lane.

Parts are whole operations wherever possible: a layer run alone stays in the processor's cache, in a whole pass it
never does. Taking turns (A B C A B C, then backwards) lets a drift of the machine hit all lanes alike.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from calibrate.fitting.ratios import Estimate, estimate
from calibrate.fitting.rising import doubtful
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.samples import Cell, Samples, Visit
from decoding.messages import ExitSignal
from runtime.lanes.lane import Lane
from runtime.wire import codec
from runtime.wire.channel import Block
from runtime.wire.operations import Ping

_SHORT_PARTS = frozenset({"draft_step", "draft_start", "draft_streams", "head_step", "stream"})
_LONG = 2
"""Weight of a part of the target that is timed several times; short parts, and those timed once, weigh one."""
_BLOCK = 4
"""Most weight between two anchors: a few tenths of a second for a small model."""
_BLOCKS_OF_A_TURN = 4
"""Within a lane's turn an anchor ends one block and begins the next. The first anchor of a turn needs a warm-up."""

CellBlock = Sequence[Cell]
Axis = Literal["rows", "context"]


def visit_in_turn(
    cells: Mapping[str, Sequence[Cell]],
    anchors: Anchors,
    *,
    backwards: bool,
    progress: Callable[[float], None] = lambda _share: None,
) -> Iterator[Visit]:
    """Time all cells of every lane once, lanes taking turns.

    Raises:
        LaneError: a lane is lost, or has not loaded what is to be timed.
    """
    turns = _turns(cells, backwards=backwards)
    for place, (lane, blocks) in enumerate(turns):
        progress(place / len(turns))
        before_s = anchors.take(lane)
        for block in blocks:
            at_s = anchors.now_s
            timed = [(cell, anchors.visit(lane, cell.measurement)) for cell in block]
            after_s = anchors.take(lane)
            yield from (Visit(cell, tuple(seconds), before_s, after_s, at_s) for cell, seconds in timed)
            before_s = after_s


def second_looks(cells: Mapping[str, Sequence[Cell]], samples: Samples) -> dict[str, list[Cell]]:
    """Choose the cells of each lane to be timed again, where more rows or a longer context seem to take less."""
    ratios = samples.ratios()
    wanted = {cell for own in cells.values() for cell in own}
    found = {cell: estimate(own) for cell, own in ratios.items() if cell in wanted}
    axes: tuple[Axis, ...] = ("rows", "context")
    again = {cell for axis in axes for line in _lines(found, axis) for cell in doubtful(line)}
    return {lane: chosen for lane, own in cells.items() if (chosen := [cell for cell in own if cell in again])}


def message_costs(lane: Lane, num_rows: int, num_candidates: int, features: int, repeats: int) -> tuple[float, float]:
    """Mean seconds that an exit message costs per hop beyond an empty one: without and with so many `features`."""
    signal = ExitSignal(((0,) * num_candidates,) * num_rows, ((0.0,) * num_candidates,) * num_rows)
    features_block = Block("bfloat16", (num_rows, features), bytes(2 * num_rows * features))
    loads = [(), codec.write(signal).blocks, codec.write(signal._replace(features=features_block)).blocks]
    pings = [Ping(load=tuple(load)) for load in loads]
    times = [[_round_trip_s(lane, ping) for ping in pings] for _ in range(repeats)]
    empty_s, plain_s, loaded_s = (fmean(sorted(row)[: -(repeats // 10) or None]) for row in zip(*times, strict=True))
    return max(0.0, plain_s - empty_s), max(0.0, loaded_s - empty_s)


def _turns(cells: Mapping[str, Sequence[Cell]], *, backwards: bool) -> list[tuple[str, list[CellBlock]]]:
    """A few blocks of one lane, then of the next; lanes with fewer run out first."""
    order = -1 if backwards else 1
    blocks = {lane: _blocks(own[::order]) for lane, own in cells.items()}
    size = _BLOCKS_OF_A_TURN
    by_lane = {lane: [own[at : at + size] for at in range(0, len(own), size)] for lane, own in blocks.items()}
    most = max(map(len, by_lane.values()), default=0)
    return [(lane, turns[place]) for place in range(most) for lane, turns in by_lane.items() if place < len(turns)]


def _blocks(cells: Sequence[Cell]) -> list[CellBlock]:
    """What is timed between two anchors: cells that follow each other, up to a weight."""
    blocks: list[list[Cell]] = []
    weight = _BLOCK
    for cell in cells:
        own = 1 if cell.measurement.part in _SHORT_PARTS or cell.measurement.repeats == 1 else _LONG
        if weight + own > _BLOCK:
            blocks.append([])
            weight = 0
        blocks[-1].append(cell)
        weight += own
    return list(blocks)


def _round_trip_s(lane: Lane, ping: Ping) -> float:
    start_s = time.perf_counter()
    lane.request(ping).result()
    return time.perf_counter() - start_s


def _lines(found: Mapping[Cell, Estimate], axis: Axis) -> list[list[tuple[Cell, Estimate]]]:
    """Cells that differ in their rows alone, or in their contexts, ascending. Trees go on where chains end."""
    lines = defaultdict[Cell, list[tuple[Cell, Estimate]]](list)
    for cell, one in found.items():
        of = cell.measurement
        part = "verify" if of.part == "verify_tree" else of.part
        alike = replace(of, part=part, num_proposals=None)
        alike = replace(alike, rows=0) if axis == "rows" else replace(alike, context=0)
        lines[replace(cell, measurement=alike)].append((cell, one))
    return [sorted(line, key=lambda entry: getattr(entry[0].measurement, axis)) for line in lines.values()]
