"""What a draft lane runs: anything that drafts windows after a committed text, chains or trees.

The draft language model (`runtime.drafters.language_model.drafter`) is one; heads that read the target's states are
others. Shapes: T rows, E width of all features a row has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any

from decoding.messages import Window
from decoding.schedule import Method, Schedule
from runtime.arrays import Array
from runtime.backends.backend import Backend
from runtime.verification.rules import GREEDY, Sampling
from runtime.wire.blocks import to_tensor
from runtime.wire.channel import Block
from runtime.wire.measurement import Measurement, Part

Steps = Generator[int, None, Window]
"""A window under way: yields the rows of every step done, returns the window."""


class WindowDrafter(ABC):
    """A drafter and the state of the sequence it drafts for."""

    methods: tuple[Method, ...]
    """Methods of a schedule that may use it."""
    feature_layers: tuple[int, ...] = ()
    """Target layers whose states it can read, ascending; `num_layers` is the state before the final norm."""
    raw_features = False
    """Whether features come as the layers left them; else each layer's has unit scale (`normalise_features`)."""
    timed_parts: tuple[Part, ...] = ("head_step",)
    """Parts that `timed_step` knows."""

    def run_on(self, new_backend: Callable[[Any], Backend]) -> bool:  # noqa: ARG002
        """Have its layers computed by what is made of their decoder; whether it can. Heads are torch everywhere."""
        return False

    def prepare(self, schedule: Schedule, *, num_prompt: int, capacity: int) -> bool:  # noqa: ARG002
        """Be ready for a sequence of a prompt of so many tokens that may grow to `capacity`; whether it compiles."""
        return False

    def array(self, block: Block) -> Array:
        """The target's features as it reads them."""
        return to_tensor(block)

    @abstractmethod
    def prefill(
        self,
        prompt: Sequence[int],
        *,
        schedule: Schedule,
        capacity: int,
        sampling: Sampling = GREEDY,
        features_TE: Array | None = None,
    ) -> None:
        """Start a sequence: read all prompt tokens but the last.

        Args:
            prompt: at least one token id.
            schedule: which windows are wanted.
            capacity: tokens that the text may grow to; room for what is drafted after it is the drafter's own
                business.
            sampling: how this sequence's tokens are chosen.
            features_TE: the target's features of all positions but the last, [len(prompt) - 1, E]; None if the
                schedule reads none.

        Raises:
            LaneError: the drafter lacks what the schedule asks for, or the features that it needs.
        """

    @abstractmethod
    def rollout(self, committed: Sequence[int] = (), features_TE: Array | None = None) -> Steps:
        """Draft a window from the committed text.

        At temperature 0 it is a function of the committed text alone.

        Args:
            committed: tokens committed since the last window was drafted; none right after `prefill`.
            features_TE: row t is the target's features of the position *before* committed token t,
                [len(committed), E]; the last row is that of the state which chose the last token.
        """

    @abstractmethod
    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """One step of `rows` rows after a random text of `context` tokens, to be run again and again.

        The sequence under way is lost.

        Raises:
            LaneError: the drafter lacks what the step needs.
        """
