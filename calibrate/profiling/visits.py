"""Visits: times the parts of all lanes in turn, in blocks between anchors of their lane.

Parts are whole operations if possible, since a layer that is timed alone stays in the processor's cache. Lanes take
turns (A B C A B C, the next pass backwards), so that a drift of the machine's speed affects all alike.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from calibrate.fitting.noise import doubtful
from calibrate.fitting.ratios import Estimate, estimate
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.samples import Cell, Samples, Visit
from runtime.wire.measurement import Part

_SHORT_PARTS = frozenset({"draft_step", "draft_start", "draft_streams", "head_step", "stream"})
_LONG = 2
"""Weight of a part of the target with several repeats; short parts, and those with one repeat, have weight 1."""
_BLOCK = 4
"""Most weight between two anchors: a few tenths of a second for a small model."""
_BLOCKS_OF_A_TURN = 4
"""Blocks of a lane's turn. An anchor between two blocks serves both; a turn's first anchor needs a warm-up."""

CellBlock = Sequence[Cell]


def visit_in_turn(
    cells: Mapping[str, Sequence[Cell]],
    anchors: Anchors,
    *,
    backwards: bool,
    progress: Callable[[float], None] = lambda _share: None,
) -> Iterator[list[Visit]]:
    """Time all cells of all lanes once, lanes taking turns; yields the visits of each block.

    Raises `LaneError` if a lane is lost or has not loaded the part.
    """
    turns = _turns(cells, backwards=backwards)
    for place, (lane, blocks) in enumerate(turns):
        progress(place / len(turns))
        before_s = anchors.take(lane)
        for block in blocks:
            at_s = anchors.now_s
            timed = [(cell, anchors.visit(lane, cell.measurement)) for cell in block]
            after_s = anchors.take(lane)
            yield [Visit(cell, tuple(seconds), before_s, after_s, at_s) for cell, seconds in timed]
            before_s = after_s


def second_looks(cells: Mapping[str, Sequence[Cell]], samples: Samples) -> dict[str, list[Cell]]:
    """Return the cells of each lane to time again, because more rows or a longer context seem to take less time."""
    ratios = samples.ratios()
    wanted = {cell for own in cells.values() for cell in own}
    found = {cell: estimate(own) for cell, own in ratios.items() if cell in wanted}
    again = {cell for axis in ("rows", "context") for line in _lines(found, axis) for cell in doubtful(line)}
    return {lane: chosen for lane, own in cells.items() if (chosen := [cell for cell in own if cell in again])}


def _turns(cells: Mapping[str, Sequence[Cell]], *, backwards: bool) -> list[tuple[str, list[CellBlock]]]:
    """Return the order of (lane, blocks of one turn); lanes with fewer blocks have fewer turns."""
    order = -1 if backwards else 1
    blocks = {lane: _blocks(own[::order]) for lane, own in cells.items()}
    size = _BLOCKS_OF_A_TURN
    by_lane = {lane: [own[at : at + size] for at in range(0, len(own), size)] for lane, own in blocks.items()}
    most = max(map(len, by_lane.values()), default=0)
    return [(lane, turns[place]) for place in range(most) for lane, turns in by_lane.items() if place < len(turns)]


def _blocks(cells: Sequence[Cell]) -> list[CellBlock]:
    """Group consecutive cells into blocks of at most `_BLOCK` weight."""
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


def _lines(found: Mapping[Cell, Estimate], axis: str) -> list[list[tuple[Cell, Estimate]]]:
    """Group cells that differ only along `axis`, ascending; trees count as wider chains."""
    lines = defaultdict[Cell, list[tuple[Cell, Estimate]]](list)
    for cell, one in found.items():
        of = cell.measurement
        part: Part = "verify" if of.part == "verify_tree" else of.part
        rows, context = (0, of.context) if axis == "rows" else (of.rows, 0)
        alike = replace(of, part=part, num_proposals=None, rows=rows, context=context)
        lines[replace(cell, measurement=alike)].append((cell, one))
    return [sorted(line, key=lambda entry: getattr(entry[0].measurement, axis)) for line in lines.values()]
