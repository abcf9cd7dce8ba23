"""A walk: all rounds in which a kind of window decodes the texts. Schedules with the same texts and window share it.

Shape legend: R rounds of a walk, G of a group, P prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import Floats, Ints


@dataclass(frozen=True, kw_only=True)
class Walk:
    """All rounds of all prompts, prompt by prompt in order; arrays are [R].

    Attributes:
        prompt: index of the prompt.
        at: start of the round among the positions of all concatenated texts.
        context: committed tokens, prompt included, minus one.
        num_drafted, num_verified: drafted tokens, and the number of first ones that the target verifies.
        num_accepted: accepted drafted tokens, even past the end of the sequence.
        num_committed: tokens appended, cut at the end of the sequence.
        contexts: contexts in which rounds of any walk of the same texts may start.
        prompt_numbers: see `AcceptanceRecord.prompt_numbers`.
        is_drawn: whether the texts were drawn from assumed rates, so that other draws give other times.
        is_sampled: whether the target sampled the texts, so that another run gives other texts.
    """

    prompt: Ints
    at: Ints
    context: Ints
    num_drafted: Ints
    num_verified: Ints
    num_accepted: Ints
    num_committed: Ints
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]
    contexts: range
    prompt_numbers: tuple[int, ...]
    is_drawn: bool = False
    is_sampled: bool = False

    @cached_property
    def place(self) -> Ints:
        """Index of each round in arrays over `contexts`, [R]."""
        return self.context - self.contexts.start

    @cached_property
    def every(self) -> Rounds:
        """All rounds."""
        return Rounds(self, np.arange(len(self.at)))

    @cached_property
    def first(self) -> Rounds:
        """The first round of each prompt."""
        return Rounds(self, np.flatnonzero(self.is_first))

    @cached_property
    def later(self) -> Rounds:
        """All rounds that are not the first of their prompt."""
        return Rounds(self, np.flatnonzero(~self.is_first))

    @cached_property
    def prompt_lengths(self) -> list[int]:
        """Number of tokens of each prompt."""
        lengths: list[int] = (self.context[self.is_first] + 1).tolist()
        return lengths

    @cached_property
    def tokens_by_prompt(self) -> Floats:
        """Committed tokens of each prompt, [P]."""
        return self.sums(self.num_committed)

    @cached_property
    def num_accepted_tokens(self) -> int:
        """Total number of drafted tokens that were committed."""
        return int(np.minimum(self.num_accepted, self.num_committed).sum())

    def sums(self, values: Floats | Ints) -> Floats:
        """Return the sums of rounds' values by prompt, [P]."""
        return np.add.reduceat(values, np.flatnonzero(self.is_first), dtype=np.float64)


class Rounds:
    """A group of rounds of a walk, given by their indices, [G]."""

    def __init__(self, walk: Walk, index: Ints) -> None:
        self._walk = walk
        self.index = index
        self._of_width: dict[int, Rounds | None] = {}

    @cached_property
    def place(self) -> Ints:
        """Index of these rounds in arrays over `Walk.contexts`, [G]."""
        return self._walk.place[self.index]

    @cached_property
    def ending(self) -> Rounds:
        """Those of these rounds that are the last of their prompt."""
        return Rounds(self._walk, self.index[self._walk.is_last[self.index]])

    @cached_property
    def going_on(self) -> Rounds:
        """Those of these rounds that another round of the prompt follows."""
        return Rounds(self._walk, self.index[~self._walk.is_last[self.index]])

    def of_width(self, width: int) -> Rounds | None:
        """Return those of these rounds that verify `width` drafted tokens; None if there are none."""
        if width not in self._of_width:
            index = self.index[self._walk.num_verified[self.index] == width]
            self._of_width[width] = Rounds(self._walk, index) if len(index) else None
        return self._of_width[width]

    @cached_property
    def place_after(self) -> Ints:
        """`place` of the rounds that follow these, [G]."""
        return self._walk.place[self.index + 1]

    @cached_property
    def accepted_before(self) -> Ints:
        """Drafted tokens accepted in the rounds before these, [G]."""
        return self._walk.num_accepted[self.index - 1]

    @cached_property
    def at(self) -> Ints:
        """Start of these rounds among the positions of all concatenated texts, [G]."""
        return self._walk.at[self.index]

    @cached_property
    def num_accepted(self) -> Ints:
        """Drafted tokens accepted in these rounds, [G]."""
        return self._walk.num_accepted[self.index]

    @cached_property
    def num_drafted(self) -> Ints:
        """Tokens drafted for these rounds, [G]."""
        return self._walk.num_drafted[self.index]
