"""The interface of drafters, which draft chains or trees after the committed tokens.

Shapes: T rows, E width of all features a row has.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any

from decoding.messages import Window
from decoding.schedule import Method, Schedule
from runtime.arrays import Array
from runtime.backends.backend import Backend
from runtime.verification.rules import GREEDY, Sampling
from runtime.wire.channel import Block, to_tensor
from runtime.wire.measurement import Measurement, Part

Steps = Generator[int, None, Window]
"""Drafting of a window: yields the rows of every step, returns the window."""


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
    num_streams = 0
    """Streams of its own that a schedule may ask for on its lane."""

    def run_on(self, new_backend: Callable[[Any], Backend]) -> None:  # noqa: B027
        """Compute the layers on the back end made of their decoder; heads compute where they were loaded."""

    def prepare(self, schedule: Schedule, *, num_prompt: int, capacity: int) -> None:  # noqa: B027
        """Prepare for a prompt of so many tokens and a sequence of `capacity`."""

    def array(self, block: Block) -> Array:
        """Return the target's features as an array of the drafter's library."""
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
        """Start a sequence: read all tokens of a prompt of at least one but the last.

        The sequence may grow to `capacity` tokens; the drafter adds room for drafted ones. `features_TE` [len(prompt) -
        1, E] are the target's of these positions, if any. Raises `LaneError` for what it lacks.
        """

    @abstractmethod
    def rollout(self, committed: Sequence[int] = (), features_TE: Array | None = None) -> Steps:
        """Draft a window after the tokens committed since the last one; at temperature 0 a function of the text alone.

        Row t of `features_TE` [len(committed), E] is the target's features of the position *before* committed token t.
        """

    @abstractmethod
    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """Return a step of `rows` rows after `context` random tokens, to be run again; the current sequence is lost.

        Raises `LaneError` if the drafter lacks what the step needs.
        """


def drafted(steps: Steps) -> Window:
    """Draft a window to its end, and return it."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            window: Window = end.value
            return window
