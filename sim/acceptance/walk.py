"""The rounds that texts go through, and groups of them that wait for the same things.

What depends on the texts and the window alone is worked out here once, for all schedules that share both.

Shape legend: R rounds of a walk, G of a group, C contexts (at every pace), P prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import Floats, Ints
from costs.paces import NUM_PACES, pace_of


@dataclass(frozen=True, kw_only=True)
class Walk:
    """All rounds of all prompts that a kind of window leads through, prompt by prompt in order; arrays [R].

    Attributes:
        prompt: index of the prompt.
        position: new tokens committed before the round.
        context: committed tokens, prompt included, minus one.
        num_accepted: drafted tokens that the target accepts, not cut.
        num_committed: tokens appended, cut at the end of the sequence.
        contexts: all in which a round may start, of this walk or another one of the same texts.
        is_drawn: whether the texts were drawn, so that other draws would take other times.
        num_paces: rounds go through so many in turn, see `costs.paces`.
    """

    prompt: Ints
    position: Ints
    context: Ints
    num_drafted: Ints
    num_accepted: Ints
    num_committed: Ints
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]
    contexts: range
    num_prompts: int
    is_drawn: bool = False
    num_paces: int = 1

    @cached_property
    def paced(self) -> Walk:
        """The same rounds at several paces."""
        return replace(self, num_paces=NUM_PACES)

    def at_paces(self, num_paces: int) -> Walk:
        """The same rounds at as many paces as durations have."""
        return self if num_paces == self.num_paces else self.paced

    @property
    def num_places(self) -> int:
        """Contexts at every pace."""
        return len(self.contexts) * self.num_paces

    @cached_property
    def place(self) -> Ints:
        """Of every round's context among `contexts`, and of its pace."""
        number = np.arange(len(self.prompt)) - np.flatnonzero(self.is_first)[self.prompt]
        pace = pace_of(self.prompt, number, self.num_paces)
        place: Ints = self.context - self.contexts.start + pace * len(self.contexts)
        return place

    @cached_property
    def every(self) -> Rounds:
        """All rounds."""
        return Rounds(self, slice(None))

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
        """What the rounds of every prompt add up to, [P]."""
        return np.add.reduceat(values, np.flatnonzero(self.is_first), dtype=np.float64)


class Rounds:
    """Some rounds of a walk, by their indices."""

    def __init__(self, walk: Walk, index: Ints | slice) -> None:
        self._walk = walk
        self.index = index

    @cached_property
    def place(self) -> Ints:
        """Of each one's context and pace, [G]."""
        return self._walk.place[self.index]

    @cached_property
    def num_at_place(self) -> Floats:
        """How many there are at every place, [C]."""
        return np.bincount(self.place, minlength=self._walk.num_places).astype(np.float64)

    @cached_property
    def ending(self) -> Rounds:
        """Those that are the last of their prompts."""
        return Rounds(self._walk, self.numbers[self._walk.is_last[self.index]])

    @cached_property
    def going_on(self) -> Rounds:
        """Those after which another one comes."""
        return Rounds(self._walk, self.numbers[~self._walk.is_last[self.index]])

    @cached_property
    def by_width(self) -> dict[int, Rounds]:
        """The same rounds by the number of tokens in their windows."""
        num_drafted, numbers = self.num_drafted, self.numbers
        return {width: Rounds(self._walk, numbers[num_drafted == width]) for width in np.unique(num_drafted).tolist()}

    @cached_property
    def place_after(self) -> Ints:
        """`place` of the rounds after these, [G]."""
        return self._walk.place[self.numbers + 1]

    @cached_property
    def accepted_before(self) -> Ints:
        """Tokens accepted in the rounds before these, [G]."""
        return self._walk.num_accepted[self.numbers - 1]

    @property
    def num_accepted(self) -> Ints:
        """Tokens accepted in them, [G]."""
        return self._walk.num_accepted[self.index]

    @property
    def num_drafted(self) -> Ints:
        """Tokens in their windows, [G]."""
        return self._walk.num_drafted[self.index]

    @property
    def numbers(self) -> Ints:
        """`index` as an array, [G]."""
        return np.arange(len(self._walk.prompt))[self.index]

    def total(self, seconds: Floats) -> float:
        """What they come to together that take so long at every context, [C]."""
        return float(self.num_at_place @ seconds)
