"""Checks that a method verifies its drafted windows, and finds how much of them methods with `shortens` verify."""

from collections.abc import Sequence
from typing import Any

from decoding.errors import ConfigError
from decoding.messages import ExitSignal, Verdict, Window
from decoding.schedule import MAX_TREE, Schedule
from sim.acceptance.joined_record import NO_TOKEN

WINDOWS = tuple(Window((NO_TOKEN,) * count) for count in range(MAX_TREE + 1))
"""Placeholder windows by number of tokens: acceptance is known already, and methods only pass windows on."""


_PLAYED = (
    "simulated are methods that verify every window once and whole, or the first tokens of it by the trait `shortens`"
)


def require_unfinished(schedule: Schedule, *, is_unfinished: bool) -> None:
    """Raise `ConfigError` if a method drafts or verifies after the end of its text."""
    if not is_unfinished:
        raise ConfigError(
            f"{schedule.method} goes on after the end of a text: it has to ask `lanes.unfinished` after every round"
        )


def require_no_draft(schedule: Schedule, *, is_drafted: bool) -> None:
    """Raise `ConfigError` if a method drafts a second window in a round."""
    if is_drafted:
        raise ConfigError(f"{schedule.method} drafts twice in a round; {_PLAYED}")


def require_drafted(schedule: Schedule, window: Window, num_drafted: int | None) -> None:
    """Raise `ConfigError` unless the verified window is the one drafted for its round (`num_drafted`; None: none was).

    A method with the trait `shortens` may verify its first tokens only.
    """
    traits, count = schedule.traits, len(window.tokens)
    if not traits.has_draft_lane or (count == num_drafted):
        return
    if num_drafted is None or count > num_drafted or not traits.shortens:
        drafted = "none was" if num_drafted is None else f"{num_drafted} were"
        raise ConfigError(
            f"{traits.name} verifies {count} drafted tokens in a round for which {drafted} drafted; {_PLAYED}"
        )


def num_verified(schedule: Schedule, text: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]) -> list[int]:
    """Return `drafted` (by position of a text) with the number of verified tokens at positions where rounds start.

    `accepted`: accepted tokens of whole windows by position. Raises `ConfigError` for a method that cannot be
        simulated.
    """
    lanes = _UntimedLanes(schedule, text, drafted, accepted)
    flow, reply = schedule.traits.flow(lanes, schedule), None
    while True:
        try:
            reply = flow.send(reply)
        except StopIteration:
            return lanes.num_verified


class _UntimedLanes:
    """Implements `decoding.lanes.Lanes` (target and draft in one object) without time; a handle is its reply."""

    def __init__(
        self, schedule: Schedule, text: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]
    ) -> None:
        self.target: Any = self
        self.draft: Any = self
        self.num_verified = list(drafted)
        self._schedule, self._text, self._accepted, self._at = schedule, text, accepted, 0
        self._num_drafted: int | None = None
        self._window = WINDOWS[0]

    @property
    def unfinished(self) -> bool:
        return self._at < len(self._text)

    def rollout(self, verdict: Verdict | None = None) -> Window:  # noqa: ARG002
        require_unfinished(self._schedule, is_unfinished=self.unfinished)
        require_no_draft(self._schedule, is_drafted=self._num_drafted is not None)
        self._num_drafted = self.num_verified[self._at]
        return WINDOWS[self._num_drafted]

    def branch(self, window: Window) -> "_UntimedLanes":  # noqa: ARG002
        return self

    def join(self, signal: ExitSignal) -> None:
        pass

    def take(self, verdict: Verdict) -> Window:
        return self.rollout(verdict)

    def prefix(self, window: Window, exit_layer: int) -> ExitSignal:  # noqa: ARG002
        self._window = window
        return ExitSignal(())

    def suffix(self) -> Verdict:
        return self.verify(self._window)

    def stream(self, window: Window) -> Verdict:
        return self.verify(window)._replace(window=WINDOWS[1])

    def verify(self, window: Window) -> Verdict:
        require_unfinished(self._schedule, is_unfinished=self.unfinished)
        require_drafted(self._schedule, window, self._num_drafted)
        self._num_drafted, count = None, len(window.tokens)
        self.num_verified[self._at] = count
        num_accepted = min(self._accepted[self._at], count)
        end = self._at + num_accepted
        return Verdict(num_accepted, self._text[end] if end < len(self._text) else NO_TOKEN)

    def commit(self, window: Window, verdict: Verdict) -> None:  # noqa: ARG002
        self._at += verdict.num_accepted + 1
