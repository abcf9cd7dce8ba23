"""Kinds of decoding, as an answer for a person distinguishes them: all methods that draft trees are one kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from decoding.schedule import Schedule

Kind = Literal["plain", "lookup", "synchronous", "tree", "mirror"]

KINDS: Final[Mapping[Kind, str]] = {
    "plain": "plain decoding",
    "lookup": "prompt lookup",
    "synchronous": "synchronous speculation",
    "tree": "tree speculation",
    "mirror": "mirror speculation",
}
"""Their names in sentences, from the simplest on: nothing but the target; text that is found again; a draft model;
heads that read the target's states; two lanes at once. Blocks of a head are chains, and synchronous like a draft's."""


def kind_of(schedule: Schedule) -> Kind:
    """Return the kind that a schedule is of, by what is true of its method."""
    traits = schedule.traits
    if traits.window == "none":
        return "plain"
    if traits.is_tree:
        return "tree"
    if traits.finds_text:
        return "lookup"
    return "mirror" if traits.overlaps else "synchronous"
