"""Prints a verdict: three lines and its warnings, and with `--explain` all that stands behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mirrorsd.cli.console import escaped, show

ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Also say how sure the answer is, what it rests on and what would change it.")
]


def show_verdict(entry: Mapping[str, Any], *, explain: bool, more: tuple[str, ...] = ()) -> None:
    """Print what `SpeculationVerdict.entry` holds; `more` are further lines of the explanation."""
    show(f"\n{escaped(entry['verdict'])}")
    for warning in entry["warnings"]:
        show(f"[yellow]{escaped(warning)}[/]")
    for line in (*entry["explanation"], *more) if explain else ():
        show(f"\n{escaped(line)}")
