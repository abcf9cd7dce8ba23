"""Tables that verbs print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from rich.table import Table

from planner.search.search import Candidate
from planner.wording import milliseconds, percent, schedule_name


def ranking(candidates: Sequence[Candidate], top: int) -> Table:
    """The best `top` candidates, the fastest first."""
    table = plain_table(f"Fastest of {len(candidates):,} schedules: predicted ms per token")
    table.add_column("schedule")
    for heading in ("ms", "interval", "tokens/round", "hits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in candidates[:top]:
        prediction = one.prediction
        table.add_row(
            schedule_name(one.schedule, one.placement),
            _ms(prediction.tpot_s),
            f"{_ms(prediction.tpot_s_low)}-{_ms(prediction.tpot_s_high)}",
            f"{prediction.mean_acceptance_length:.2f}",
            share(prediction.reuse_rate),
        )
    return table


def outcome_table(result: Mapping[str, Any]) -> Table:
    """Predicted beside measured, from the JSON object of `demo` or `validate`; the winner is bold."""
    table = plain_table("Milliseconds per token")
    table.add_column("schedule")
    for heading in ("predicted", "interval", "measured", "error", "tokens/round", "hits", "rounds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in result["schedules"]:
        predicted, measured = entry["predicted"], entry["measured"]
        table.add_row(
            entry["name"],
            _ms(predicted["tpot_s"]),
            f"{_ms(predicted['tpot_s_low'])}-{_ms(predicted['tpot_s_high'])}",
            _ms(measured["tpot_s"]),
            f"{entry['tpot_error']:+.1%}",
            f"{measured['mean_acceptance_length']:.2f}",
            share(measured["reuse_rate"]),
            "same" if entry["same_rounds"] else f"{len(entry['divergences'])} differ",
            style="bold" if entry["name"] == result.get("winner") else None,
        )
    return table


def plain_table(title: str) -> Table:
    """A table without frames, which survives being copied."""
    return Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")


def share(value: float) -> str:
    """A share, or a dash where there is none."""
    return "-" if isnan(value) else percent(value)


def _ms(time_s: float) -> str:
    return milliseconds(time_s).removesuffix(" ms")
