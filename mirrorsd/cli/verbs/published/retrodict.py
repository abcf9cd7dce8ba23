"""`mirrorsd retrodict`: compares public measurements of speculation with predictions from shipped data."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorsd.cli.console import show, show_paragraphs, write_json
from mirrorsd.cli.options import JsonOption

if TYPE_CHECKING:
    from planner.retrodict.retrodiction import Retrodicted

_SPEEDS = ("published", "predicted", "interval", "error")
EXAMPLE = "mirrorsd retrodict cases.yaml"


def retrodict(
    file: Annotated[Path, typer.Argument(metavar="CASES", help="Measurements: a YAML file (docs/platforms.md).")],
    json: JsonOption = None,
) -> None:
    """Predict public measurements of speculation from the shipped data sheets, and report the errors."""
    from mirrorsd.cli.tables import plain_table
    from planner.retrodict.cases import load_cases
    from planner.retrodict.retrodiction import IN_WORDS, QUESTIONS, notes, worth
    from planner.retrodict.retrodiction import retrodict as predicted

    found = predicted(load_cases(file))
    if not write_json({"cases": [one.as_entry() for one in found.found], "summary": found.summary()}, json):
        return
    contexts = {(one.case.id, one.speed.context) for one in found.found}
    several = len(contexts) > len({name for name, _ in contexts})
    for question in QUESTIONS:
        own = found.of(question)
        if own:
            named = any(one.speed.key != str(one.speed.drafted) for one in own)
            left, right = ("case", *["setting"] * named), ("drafted", *["cached"] * several, *_SPEEDS)
            show(plain_table(IN_WORDS[question], left, right, (_row(one, named, several) for one in own)))
    skipped = defaultdict[tuple[str, str], list[str]](list)
    for one in found.skipped:
        skipped[one.id, one.reason].append(one.question)
    answered = {(one.case.id, one.question) for one in found.found}
    lines = [
        f"{'a speed of ' * any((name, one) in answered for one in questions)}{name} ({', '.join(questions)}): {reason}"
        for (name, reason), questions in skipped.items()
    ]
    show_paragraphs(worth(found), *notes(found), *(["\n".join(["Not predicted:", *lines])] if lines else []))


def _row(one: "Retrodicted", named: bool, several: bool) -> tuple[str, ...]:
    """Return the cells of a speed; `named` adds the name of its setting, `several` its cached tokens."""
    from planner.wording import digits

    low, value, high = (digits(number) for number in (one.predicted.low, one.predicted.value, one.predicted.high))
    speed, assumed = one.speed, " assumed" * (not one.speed.is_drafted_known)
    drafted = f"at most {speed.drafted}" if speed.ends_early else f"{speed.drafted}{assumed}"
    where = *[speed.key] * named, drafted, *[f"{speed.context:,}"] * several
    off = f"{100 * one.error:+.0f} %{'' if one.is_held else ' (outside)'}"
    return one.case.id, *where, digits(one.published), value, f"{low} to {high}", off
