"""Half of the prompts to fit and choose on, the other half to judge on: what was picked on prompts looks good there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from decoding.record import AcceptanceRecord

FEWEST = 4
"""With fewer prompts there are no halves: one of them would be a single prompt, which shows no spread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Halves:
    """Places of prompts in a record: those to fit budgets to and choose the fastest on, and those to judge it on."""

    choosing: tuple[int, ...]
    judging: tuple[int, ...]


def halves(record: AcceptanceRecord) -> Halves | None:
    """Return the prompts dealt in turn, kind by kind, so that halves are alike; None for fewer than `FEWEST`."""
    if len(record.prompts) < FEWEST:
        return None
    kinds = list(dict.fromkeys(prompt.category for prompt in record.prompts))
    order = sorted(range(len(record.prompts)), key=lambda place: kinds.index(record.prompts[place].category))
    return Halves(choosing=tuple(sorted(order[::2])), judging=tuple(sorted(order[1::2])))


def only(record: AcceptanceRecord, places: Sequence[int]) -> AcceptanceRecord:
    """Return the record of some of its prompts."""
    return replace(record, prompts=tuple(record.prompts[place] for place in places))


def choosing_part(record: AcceptanceRecord) -> AcceptanceRecord:
    """Return what may be fitted to: the prompts to choose on; all of them where there are no halves."""
    parts = halves(record)
    return record if parts is None else only(record, parts.choosing)


def judging_part(record: AcceptanceRecord) -> AcceptanceRecord:
    """Return what is judged on; all prompts where there are no halves."""
    parts = halves(record)
    return record if parts is None else only(record, parts.judging)
