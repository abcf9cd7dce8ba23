"""Tables that verbs print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from planner.search.search import Candidate
from planner.wording import milliseconds, percent, schedule_names

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
_SHORTER: Final = {
    "synchronous": "sync",
    "speculative ": "",
    " roots per row": " roots",
    " root per row": " root",
    " from ": " ",
}
"""What names become there."""


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

    In a `width` (characters) that is too small for everything, the columns that judge a prediction are left, and
    names are shorter.
    """
    table = plain_table("Milliseconds per token; errors as calibrated, and corrected for machine speed")
    table.add_column("schedule")
    is_narrow = width < _WIDE_ENOUGH
    rows = [_outcome_row(entry) for entry in result["schedules"]]
    if is_narrow:
        rows = [{heading: row[heading] for heading in _NARROW} for row in rows]
    for heading in rows[0]:
        table.add_column(_NARROW.get(heading, heading) if is_narrow else heading, justify="right", no_wrap=True)
    for entry, row in zip(result["schedules"], rows, strict=True):
        name = _short(entry["name"]) if is_narrow else entry["name"]
        style = "bold" if entry["name"] == result.get("winner") else None
        table.add_row(escape(name) + " (a lane was lost)" * bool(entry["events"]), *row.values(), style=style)
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
        "corrected error": f"{entry['tpot_error_at_anchor']:+.1%}",
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
    return "-" if entry is None else f"{_ms(entry['measured_s'])} ({entry['error']:+.0%})"


def _rounds(entry: Mapping[str, Any]) -> str:
    """Whether the rounds were those simulated; red where they should have been."""
    equal, of = entry["rounds_equal"]["equal"], entry["rounds_equal"]["of"]
    text = "same" if equal == of else f"{of - equal} of {of} differ"
    return f"[red]{text}[/]" if entry["rounds_alarm"] else text


def _short(name: str) -> str:
    for word, short in _SHORTER.items():
        name = name.replace(word, short)
    return name


def _ms(time_s: float) -> str:
    return milliseconds(time_s).removesuffix(" ms")
