"""Kinds of decoding, as an answer for a person tells them apart: all methods that draft trees are one kind."""

from __future__ import annotations

from typing import Final, Literal, cast

from decoding.schedule import Schedule

Kind = Literal["autoregressive", "speculative", "tree", "mirror"]

KINDS: Final[tuple[Kind, ...]] = ("autoregressive", "speculative", "tree", "mirror")
"""From the simplest on: nothing but the target; a draft beside it; heads that read its states; two lanes at once."""


def kind_of(schedule: Schedule) -> Kind:
    """The kind that a schedule is of."""
    return "tree" if schedule.is_tree else cast("Kind", schedule.method)
