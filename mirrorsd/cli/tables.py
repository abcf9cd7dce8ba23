"""Tables that verbs print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from planner.search.search import Candidate
from planner.wording import between, in_ms, percent, schedule_names

_WIDE_ENOUGH: Final = 145
"""Characters in which a schedule's name and all columns of an outcome find room."""
_NARROW: Final = {
    "predicted": "pred.",
    "measured": "meas.",
    "error": "error",
    "corrected error": "corr.",
    "rounds": "rounds",
}
"""Columns of an outcome that a narrow terminal has room for, and what they are called there."""

_OF_OWN_PROMPTS: Final = {"prompts", "plain there"}
"""Columns that are needed only where some schedules have run fewer prompts than others."""


def ranking(candidates: Sequence[Candidate], top: int) -> Table:
    """The best `top` candidates, the fastest first."""
    title = f"Fastest of {len(candidates):,} schedules: predicted ms per token"
    table = plain_table(title, ("schedule",), ("ms", "interval", "tokens/round", "hits"))
    shown = candidates[:top]
    for name, one in zip(schedule_names([(one.schedule, one.placement) for one in shown]), shown, strict=True):
        prediction = one.prediction
        table.add_row(
            name,
            in_ms(prediction.tpot_s),
            between(prediction.tpot_s_low, prediction.tpot_s_high),
            f"{prediction.mean_acceptance_length:.2f}",
            share(prediction.reuse_rate),
        )
    return table


def outcome_table(result: Mapping[str, Any], *, width: int) -> Table:
    """Predicted and measured times, the winner bold; columns that judge predictions go where `width` is small."""
    rows = [_outcome_row(entry) for entry in result["schedules"]]
    if len({row["prompts"] for row in rows}) == 1:
        rows = [{name: value for name, value in row.items() if name not in _OF_OWN_PROMPTS} for row in rows]
    if width < _WIDE_ENOUGH:
        rows = [{short: row[heading] for heading, short in _NARROW.items()} for row in rows]
    title = "Milliseconds per token; errors as calibrated, and corrected for machine speed"
    table = plain_table(title, ("schedule",), tuple(rows[0]))
    for entry, row in zip(result["schedules"], rows, strict=True):
        name = entry["name"]
        style = "bold" if entry["name"] == result.get("winner") else None
        table.add_row(escape(name) + " (a lane was lost)" * bool(entry["events"]), *row.values(), style=style)
    return table


def plain_table(title: str, left: Sequence[str] = (), right: Sequence[str] = ()) -> Table:
    """A table without frames, which survives being copied; columns of text, then those of numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for heading in left:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def share(value: float) -> str:
    """A share, or a dash where there is none."""
    return "-" if isnan(value) else percent(value)


def _outcome_row(entry: Mapping[str, Any]) -> dict[str, str]:
    """What is shown of a schedule, by heading."""
    predicted, measured = entry["predicted"], entry["measured"]
    return {
        "predicted": in_ms(predicted["tpot_s"]),
        "interval": between(predicted["tpot_s_low"], predicted["tpot_s_high"]),
        "measured": in_ms(measured["tpot_s"]),
        "error": f"{entry['tpot_error']:+.1%}",
        "corrected error": f"{entry['tpot_error_at_anchor']:+.1%}",
        "prompts": str(entry.get("num_prompts", "-")),
        "plain there": "-" if entry.get("plain_tpot_s") is None else in_ms(entry["plain_tpot_s"]),
        "speed-up": _speedup(entry["speedup_measured"]),
        "tokens/round": f"{measured['mean_acceptance_length']:.2f}",
        "hits": share(measured["reuse_rate"]),
        "first token": _first_token(entry.get("ttft")),
        "rounds": _rounds(entry),
    }


def _speedup(entry: Mapping[str, Any] | None) -> str:
    """How many times as fast as plain decoding a schedule was measured, with its interval."""
    if entry is None:
        return "-"
    if entry["low"] is None or entry["low"] == entry["high"]:
        return f"{entry['value']:.2f}"
    return f"{entry['value']:.2f} ({entry['low']:.2f}-{entry['high']:.2f})"


def _first_token(entry: Mapping[str, float] | None) -> str:
    """When it came, and how far off the prediction is."""
    return "-" if entry is None else f"{in_ms(entry['measured_s'])} ({entry['error']:+.0%})"


def _rounds(entry: Mapping[str, Any]) -> str:
    """Whether the rounds were those simulated; red where they should have been."""
    equal, of = entry["rounds_equal"]["equal"], entry["rounds_equal"]["of"]
    text = "same" if equal == of else f"{of - equal} of {of} differ"
    return f"[red]{text}[/]" if entry["rounds_alarm"] else text
