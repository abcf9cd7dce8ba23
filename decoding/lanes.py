"""Protocols of the lane calls that a method makes. The simulator and the real runtime each implement them.

A lane call *starts* work and returns a handle; `yield handle` inside a method waits for the reply. A lane executes its
calls first in, first out. The loss of the draft lane (its process died, hung or was too late) raises nothing in a
method: the handles reply `NO_WINDOW` and the target goes on alone. If the target lane is lost, the driver raises
`LaneError`.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from decoding.messages import ExitSignal, Verdict, Window

if TYPE_CHECKING:
    from decoding.schedule import Schedule


class Handle(Protocol):
    """Work in progress. A method can do nothing with it but yield it."""


class TargetLane(Protocol):
    """The target's lane. A pass computes one row for the last committed token and one for each token of the window."""

    def verify(self, window: Window) -> Handle:
        """Run all layers over the window; the reply is a `Verdict`."""

    def prefix(self, window: Window, exit_layer: int) -> Handle:
        """Run layers 1..exit_layer and the exit head; the reply is an `ExitSignal`."""

    def stream(self, window: Window) -> Handle:
        """Verify, and draft the next window in the same pass; the reply is a `Verdict` with `window`."""

    def suffix(self) -> Handle:
        """Run the remaining layers over the rows of the last `prefix`; the reply is a `Verdict`."""


class Branches(Protocol):
    """The windows that the draft model prepares for likely outcomes of the current round."""

    def join(self, signal: ExitSignal) -> None:
        """Add branches for the roots of an exit; they begin with the draft model's next step."""

    def take(self, verdict: Verdict) -> Handle:
        """Ask for the next window; the reply is a `Window`.

        Hit: a branch has the verdict's outcome; the lane finishes it and drops all others. Miss: the lane drops all
        branches after its current step and starts a new rollout from the committed tokens.
        """


class DraftLane(Protocol):
    """The drafter's lane: it runs a draft model, a draft head or prompt lookup."""

    def rollout(self, verdict: Verdict | None = None) -> Handle:
        """Draft a window after the committed tokens; the reply is a `Window`, a chain or a tree as the schedule says.

        `verdict` is the last round's, whose features some drafters read; None at the start.
        """

    def branch(self, window: Window) -> Branches:
        """Start preparing branches for the outcomes of `window`, from draft-sourced roots if the schedule has them."""


class Lanes(Protocol):
    """What a method works with: the two lanes, and the sequence to decode."""

    @property
    def target(self) -> TargetLane:
        """The target's lane."""

    @property
    def draft(self) -> DraftLane:
        """The draft's lane; the target's lane in a pooled placement."""

    @property
    def unfinished(self) -> bool:
        """Whether the sequence has reached neither its end nor `max_new_tokens`."""

    def commit(self, window: Window, verdict: Verdict) -> None:
        """End the round.

        Append the accepted tokens and the target's next token to the sequence, cut after an EOS token and at
        `max_new_tokens`, and write the round to the trace.
        """


MethodFlow = Generator[Handle, Any, None]
"""A running method: it yields handles and is sent their replies. A handle does not tell its reply's type, so a method
declares it where it waits: `verdict: Verdict = yield ...`."""

MethodFunction = Callable[[Lanes, "Schedule"], MethodFlow]
"""A decoding method. As with any generator function, a call runs nothing before the first `send(None)`."""
