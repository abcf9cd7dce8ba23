"""Tables that verbs print."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from rich.table import Table

from planner.search import Candidate
from planner.wording import milliseconds, percent, schedule_name


def ranking(candidates: Sequence[Candidate], top: int) -> Table:
    """The best `top` candidates, the fastest first."""
    table = plain_table(f"Fastest of {len(candidates):,} schedules, predicted")
    table.add_column("")
    table.add_column("schedule")
    for heading in ("per token", "low", "high", "tokens/round", "hits"):
        table.add_column(heading, justify="right")
    for place, one in enumerate(candidates[:top], 1):
        prediction = one.prediction
        table.add_row(
            str(place),
            schedule_name(one.schedule, one.placement),
            milliseconds(prediction.tpot_s),
            milliseconds(prediction.tpot_s_low),
            milliseconds(prediction.tpot_s_high),
            f"{prediction.mean_acceptance_length:.2f}",
            share(prediction.reuse_rate),
        )
    return table


def plain_table(title: str) -> Table:
    """A table without frames, which survives being copied."""
    return Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")


def share(value: float) -> str:
    """A share, or a dash where there is none."""
    return "-" if isnan(value) else percent(value)
