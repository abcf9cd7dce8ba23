"""`mirrorsd retrodict`: public measurements of speculation next to what ships predicts of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorsd.cli.console import JsonOption, escaped, show, show_paragraphs, write_json

if TYPE_CHECKING:
    from planner.retrodict.retrodiction import Retrodicted, Retrodiction

EXAMPLE = "mirrorsd retrodict cases.yaml"


def retrodict(
    file: Annotated[Path, typer.Argument(metavar="CASES", help="Measurements: a YAML file (docs/platforms.md).")],
    json: JsonOption = None,
) -> None:
    """Predict public measurements of speculation from the shipped data sheets, and say how far off that is."""
    from planner.retrodict.cases import load_cases
    from planner.retrodict.retrodiction import QUESTIONS
    from planner.retrodict.retrodiction import retrodict as predicted

    found = predicted(load_cases(file))
    if not write_json({"cases": [one.as_entry() for one in found.found], "summary": found.summary()}, json):
        return
    for question in QUESTIONS:
        if found.of(question):
            show(_table(question, found.of(question)))
    show_paragraphs(*_sentences(found))


def _table(question: str, found: Any) -> Any:
    from mirrorsd.cli.tables import plain_table
    from planner.retrodict.retrodiction import IN_WORDS

    columns = ("drafted", "published", "predicted", "interval", "off by")
    table = plain_table(IN_WORDS[question], ("case",), columns)
    for one in found:
        table.add_row(*_row(one))
    return table


def _row(one: Retrodicted) -> tuple[str, ...]:
    low, value, high = (f"{number:.3g}" for number in (one.predicted.low, one.predicted.value, one.predicted.high))
    held = "" if one.is_held else " (outside)"
    return (
        escaped(one.case.id),
        one.drafted,
        f"{one.published:.3g}",
        value,
        f"{low} to {high}",
        f"{100 * one.error:+.0f} %{held}",
    )


def _sentences(found: Retrodiction) -> tuple[str, ...]:
    from planner.retrodict.retrodiction import worth

    skipped = [f"{one.case.id} ({one.question}): {one.reason.partition(';')[0]}" for one in found.skipped]
    told = f"Not predicted: {'; '.join(skipped)}." if skipped else ""
    return tuple(filter(None, (worth(found), escaped(told))))
