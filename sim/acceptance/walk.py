"""The rounds that texts go through, and groups of them that wait for the same things.

What depends on the texts and the window alone is worked out here once, for all schedules that share both.

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
    """All rounds of all prompts that a kind of window leads through, prompt by prompt in order; arrays [R].

    Attributes:
        prompt: index of the prompt.
        at: where the round starts among the positions of all texts together.
        context: committed tokens, prompt included, minus one.
        num_drafted, num_verified: drafted tokens, and the first ones of them that the target verifies.
        num_accepted: those that it accepts, not cut.
        num_committed: tokens appended, cut at the end of the sequence.
        contexts: all in which a round may start, of this walk or another one of the same texts.
        prompt_numbers: see `AcceptanceRecord.prompt_numbers`.
        is_drawn: whether the texts were drawn by assumed rates, so that other draws would take other times.
        is_sampled: whether the target sampled them, so that the same prompts would have other texts the next time.
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
        """Index of every round in arrays by context, [R]."""
        return self.context - self.contexts.start

    @cached_property
    def every(self) -> Rounds:
        """All rounds."""
        return Rounds(self, np.arange(len(self.at)))

    @cached_property
    def first(self) -> Rounds:
        """The first ones of prompts."""
        return Rounds(self, np.flatnonzero(self.is_first))

    @cached_property
    def later(self) -> Rounds:
        """All others."""
        return Rounds(self, np.flatnonzero(~self.is_first))

    @cached_property
    def prompt_lengths(self) -> list[int]:
        """Tokens of every prompt."""
        lengths: list[int] = (self.context[self.is_first] + 1).tolist()
        return lengths

    @cached_property
    def tokens_by_prompt(self) -> Floats:
        """Committed tokens, [P]."""
        return self.sums(self.num_committed)

    @cached_property
    def num_accepted_tokens(self) -> int:
        """Drafted tokens that were committed, in all."""
        return int(np.minimum(self.num_accepted, self.num_committed).sum())

    def sums(self, values: Floats | Ints) -> Floats:
        """Sum up values of rounds by prompt, [P]."""
        return np.add.reduceat(values, np.flatnonzero(self.is_first), dtype=np.float64)


class Rounds:
    """Some rounds of a walk, by their indices."""

    def __init__(self, walk: Walk, index: Ints) -> None:
        self._walk = walk
        self.index = index
        self._of_width: dict[int, Rounds | None] = {}

    @cached_property
    def place(self) -> Ints:
        """Index of these rounds in arrays by context, [G]."""
        return self._walk.place[self.index]

    @cached_property
    def ending(self) -> Rounds:
        """These rounds that are the last of their prompts."""
        return Rounds(self._walk, self.index[self._walk.is_last[self.index]])

    @cached_property
    def going_on(self) -> Rounds:
        """These rounds after which another one comes."""
        return Rounds(self._walk, self.index[~self._walk.is_last[self.index]])

    def of_width(self, width: int) -> Rounds | None:
        """Return these rounds that verify `width` drafted tokens, or None if there are none."""
        if width not in self._of_width:
            index = self.index[self._walk.num_verified[self.index] == width]
            self._of_width[width] = Rounds(self._walk, index) if len(index) else None
        return self._of_width[width]

    @cached_property
    def place_after(self) -> Ints:
        """`place` of the rounds after these, [G]."""
        return self._walk.place[self.index + 1]

    @cached_property
    def accepted_before(self) -> Ints:
        """Tokens accepted in the rounds before these, [G]."""
        return self._walk.num_accepted[self.index - 1]

    @cached_property
    def at(self) -> Ints:
        """Where they start among the positions of all texts together, [G]."""
        return self._walk.at[self.index]

    @cached_property
    def num_accepted(self) -> Ints:
        """Tokens accepted in them, [G]."""
        return self._walk.num_accepted[self.index]

    @cached_property
    def num_drafted(self) -> Ints:
        """Tokens drafted for them, [G]."""
        return self._walk.num_drafted[self.index]
