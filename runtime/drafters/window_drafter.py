"""The interface of drafters, which draft chains or trees after the committed tokens.

Shapes: T rows, E width of all features of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence

from decoding.messages import Window
from decoding.schedule import Method, Schedule
from runtime.arrays import Array
from runtime.verification.rules import GREEDY, Sampling
from runtime.wire.channel import Block, to_tensor
from runtime.wire.measurement import Measurement, Part

Steps = Generator[int, None, Window]
"""A running draft of a window: yields the number of rows of every step, and returns the window."""


class WindowDrafter(ABC):
    """A drafter with the state of its current sequence."""

    methods: tuple[Method, ...]
    """The methods that may use it."""
    feature_layers: tuple[int, ...] = ()
    """Target layers whose hidden states it can read, ascending; that of `num_layers` is before the final norm."""
    raw_features = False
    """Whether it reads unscaled features; else each layer's are divided by their RMS (`normalise_features`)."""
    timed_parts: tuple[Part, ...] = ("head_step",)
    """The parts that `timed_step` supports."""
    num_streams = 0
    """The number of streams of a draft model on its lane (`Schedule.draft_streams`)."""

    def prepare(self, schedule: Schedule, *, num_prompt: int, capacity: int) -> None:  # noqa: B027
        """Prepare for a sequence of `capacity` tokens, of which the prompt has `num_prompt`."""

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
        """Start a sequence: read all tokens of the prompt but the last; the prompt has at least one.

        The sequence may grow to `capacity` tokens; the drafter adds room for drafted ones. `features_TE` [len(prompt) -
        1, E] are the target's features of these positions, if it reads any. Raises `LaneError` if the schedule needs
        something that the drafter lacks.
        """

    @abstractmethod
    def rollout(self, committed: Sequence[int] = (), features_TE: Array | None = None) -> Steps:
        """Draft a window; `committed` are the tokens that were committed since the last window.

        Row t of `features_TE` [len(committed), E] are the target's features of the position *before* committed token t.
        At temperature 0 the window depends on the committed text alone.
        """

    @abstractmethod
    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """Return a repeatable step of `rows` rows after `context` random tokens; the current sequence is lost.

        Raises `LaneError` if the drafter lacks something that the step needs.
        """


def drafted(steps: Steps) -> Window:
    """Run all steps, and return the window."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            window: Window = end.value
            return window
