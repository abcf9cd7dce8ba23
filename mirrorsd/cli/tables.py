"""Tables that verbs print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, Final

from rich.table import Table

from planner.search.search import Candidate
from planner.wording import milliseconds, percent, schedule_names

_WIDE_ENOUGH: Final = 110
"""Characters in which a schedule's name and all columns of an outcome find room."""


def ranking(candidates: Sequence[Candidate], top: int) -> Table:
    """The best `top` candidates, the fastest first."""
    table = plain_table(f"Fastest of {len(candidates):,} schedules: predicted ms per token")
    table.add_column("schedule")
    for heading in ("ms", "interval", "tokens/round", "hits"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = candidates[:top]
    for name, one in zip(schedule_names([(one.schedule, one.placement) for one in shown]), shown, strict=True):
        prediction = one.prediction
        table.add_row(
            name,
            _ms(prediction.tpot_s),
            interval(prediction.tpot_s_low, prediction.tpot_s_high),
            f"{prediction.mean_acceptance_length:.2f}",
            share(prediction.reuse_rate),
        )
    return table


def outcome_table(result: Mapping[str, Any], *, width: int) -> Table:
    """Predicted and measured times, from the JSON object of `demo` or `validate`; the winner is bold.

    In a `width` (characters) that is too small for everything, the columns that judge a prediction are left.
    """
    table = plain_table("Milliseconds per token")
    table.add_column("schedule")
    rows = [_outcome_row(entry) for entry in result["schedules"]]
    if width < _WIDE_ENOUGH:
        rows = [{heading: row[heading] for heading in ("predicted", "measured", "error", "rounds")} for row in rows]
    for heading in rows[0]:
        table.add_column(heading, justify="right", no_wrap=True)
    for entry, row in zip(result["schedules"], rows, strict=True):
        table.add_row(entry["name"], *row.values(), style="bold" if entry["name"] == result.get("winner") else None)
    return table


def interval(low_s: float, high_s: float) -> str:
    """A time that lies between two, in milliseconds; where nothing is known from below, the upper one."""
    return f"{_ms(low_s)}-{_ms(high_s)}" if low_s > 0 else f"up to {_ms(high_s)}"


def plain_table(title: str) -> Table:
    """A table without frames, which survives being copied."""
    return Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")


def share(value: float) -> str:
    """A share, or a dash where there is none."""
    return "-" if isnan(value) else percent(value)


def _outcome_row(entry: Mapping[str, Any]) -> dict[str, str]:
    """What is shown of a schedule, by heading."""
    predicted, measured = entry["predicted"], entry["measured"]
    return {
        "predicted": _ms(predicted["tpot_s"]),
        "interval": interval(predicted["tpot_s_low"], predicted["tpot_s_high"]),
        "measured": _ms(measured["tpot_s"]),
        "error": f"{entry['tpot_error']:+.1%}",
        "tokens/round": f"{measured['mean_acceptance_length']:.2f}",
        "hits": share(measured["reuse_rate"]),
        "rounds": "same" if entry["same_rounds"] else f"{len(entry['divergences'])} differ",
    }


def _ms(time_s: float) -> str:
    return milliseconds(time_s).removesuffix(" ms")
