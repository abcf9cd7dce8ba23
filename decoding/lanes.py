"""The lane calls a method may use, and what they return. Each world implements these protocols.

A lane call *starts* work and returns a handle; `yield handle` inside a method waits for the reply. A lane is first in,
first out. A lost draft lane (dead, hung, too late) never raises here: its handles reply `NO_WINDOW` and the target goes
on alone. A lost target lane raises `LaneError` out of the driver.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from decoding.messages import ExitSignal, Verdict, Window

if TYPE_CHECKING:
    from decoding.schedule import Schedule


class Handle(Protocol):
    """Work under way. Opaque to a method: it can only be yielded."""


class TargetLane(Protocol):
    """The target: its rows are the last committed token and then the window."""

    def verify(self, window: Window) -> Handle:
        """Run all layers over the window; replies `Verdict`."""

    def prefix(self, window: Window, exit_layer: int) -> Handle:
        """Run layers 1..exit_layer and the exit head; replies `ExitSignal`."""

    def stream(self, window: Window) -> Handle:
        """Verify, and draft the next window in the same pass; replies `Verdict` with `window`."""

    def suffix(self) -> Handle:
        """Run the remaining layers over the rows last given to `prefix`; replies `Verdict`."""


class Branches(Protocol):
    """Continuations being prepared for likely outcomes of the round under way."""

    def join(self, signal: ExitSignal) -> None:
        """Add the exit's roots, from the draft's next step on."""

    def take(self, verdict: Verdict) -> Handle:
        """Ask for the next window; replies `Window`.

        If a branch has the verdict's outcome it alone is kept and finished (a hit). Otherwise all branches are
        dropped at the next step boundary and a fresh rollout starts from the committed tokens (a miss).
        """


class DraftLane(Protocol):
    """What drafts: a draft model, a head or a lookup."""

    def rollout(self, verdict: Verdict | None = None) -> Handle:
        """Draft a window from the committed tokens, a chain or a tree by the schedule; replies `Window`.

        `verdict` is the last one, for a draft that reads the target's features; None at the start.
        """

    def branch(self, window: Window) -> Branches:
        """Start preparing for the outcomes of `window`, with draft-sourced roots if the schedule has them."""


class Lanes(Protocol):
    """The two lanes that a method is given, and the sequence that it decodes."""

    @property
    def target(self) -> TargetLane:
        """The target's lane."""

    @property
    def draft(self) -> DraftLane:
        """The draft's lane; the same device in a pooled placement."""

    @property
    def unfinished(self) -> bool:
        """Whether the sequence wants more tokens."""

    def commit(self, window: Window, verdict: Verdict) -> None:
        """End the round.

        Append the accepted tokens and the target's own, cut at an EOS token and at `max_new_tokens`, and write the
        round to the trace.
        """


MethodFlow = Generator[Handle, Any, None]
"""A running method: yields handles, is sent their replies. A reply's type is not known from its handle, so methods
declare it where they wait: `verdict: Verdict = yield ...`."""

MethodFunction = Callable[[Lanes, "Schedule"], MethodFlow]
"""A decoding method; nothing of it runs before the first `send(None)`."""
