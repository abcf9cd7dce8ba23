"""What is timed again before anything else: parts that seem to take less for more rows, or for a longer context."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from calibrate.fitting.ratios import Estimate, estimate
from calibrate.fitting.rising import doubtful
from calibrate.profiling.samples import Cell, Samples

Axis = Literal["rows", "context"]


def second_looks(cells: Mapping[str, Sequence[Cell]], samples: Samples) -> dict[str, list[Cell]]:
    """Those of the cells of each lane that are to be timed again, in their order."""
    ratios = samples.ratios()
    wanted = {cell for own in cells.values() for cell in own}
    found = {cell: estimate(own) for cell, own in ratios.items() if cell in wanted}
    axes: tuple[Axis, ...] = ("rows", "context")
    again = {cell for axis in axes for line in _lines(found, axis) for cell in doubtful(line)}
    return {lane: chosen for lane, own in cells.items() if (chosen := [cell for cell in own if cell in again])}


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
