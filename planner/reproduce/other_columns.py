"""Columns of other methods, predicted from tokens per round that were published for other targets.

Nothing in a table says how often its EAGLE or Medusa heads were right, so the mean of a column is predicted from what
their authors published of another target, and from what verifying a tree costs on the machine::

    speed-up = tokens per round * plain / (pass over the tree's rows + drafting)

A step of EAGLE is one layer and the output head over ten nodes; Medusa's and Hydra's heads are an output head each.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from costs.cost_model import Part
from costs.prices import Prices
from costs.round_plan import LAYER, LM_HEAD
from planner.reproduce.published_table import PublishedTable
from planner.reproduce.reproduction import Reproduction
from planner.reproduce.setup import PROMPT_TOKENS

_FILE: Final = Path(__file__).with_name("tokens-per-round.csv")
_EAGLE_ROWS: Final = 10
_NUM_HEADS: Final = 4


class OtherColumn(NamedTuple):
    """Mean speed-ups of a method over the cells that can be compared, greedy."""

    method: str
    num_cells: int
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """Return the relative error, positive where too much is predicted."""
        return self.predicted / self.published - 1


def other_columns(found: Reproduction) -> list[OtherColumn]:
    """Return every method of the table for which somebody published tokens per round, in the order of the file."""
    setup = found.setup
    machine = setup.profile(found.constants)
    prices, lane = Prices(machine.profile, machine.costs), setup.machine.target_lane
    whole_pass = {LAYER: setup.target.shape.num_layers, LM_HEAD: 1}

    def seconds(calls: Mapping[Part, int], rows: int) -> float:
        return prices.calls_s(lane, calls, rows, float(PROMPT_TOKENS))

    columns = []
    for method, rows in _published_tokens():
        cells = [pair for row in rows for pair in _cells(found.table, method, row)]
        if cells:
            tree_rows, steps = int(rows[0]["rows"]), int(rows[0]["steps"])
            if method.startswith("EAGLE"):
                drafting_s = steps * seconds({LAYER: 1, LM_HEAD: 1}, _EAGLE_ROWS)
            else:
                drafting_s = seconds({LM_HEAD: _NUM_HEADS}, 1)
            a_token = seconds(whole_pass, 1) / (seconds(whole_pass, tree_rows) + drafting_s)
            published, tokens = (fmean(values) for values in zip(*cells, strict=True))
            columns.append(OtherColumn(method, len(cells), published, tokens * a_token))
    return columns


def _published_tokens() -> Iterator[tuple[str, list[dict[str, str]]]]:
    with _FILE.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for method, group in groupby(rows, key=lambda row: row["method"]):
        yield method, list(group)


def _cells(table: PublishedTable, method: str, row: Mapping[str, str]) -> Iterator[tuple[float, float]]:
    """Yield (published speed-up, tokens per round) of the greedy cells that a row is about; without a task all."""
    for cell in table.cells:
        if cell.temperature == 0 and row["task"] in ("", cell.task) and (value := cell.others.get(method)) is not None:
            yield value, float(row["tokens"])
