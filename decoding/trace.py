"""What happened, in either world: spans on lanes, and one entry per round. Metrics are computed from it later.

Times are seconds from the start of decoding (prefill lies before zero and is kept apart).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import FailFast

from decoding.messages import Outcome, Verdict, Window

NOT_COMMITTED = -1
"""Stands for the target's own token where the sequence ended before it."""


class Work(StrEnum):
    """Kinds of span. The same names are used by both worlds, by calibration and by the report."""

    VERIFY = "verify"
    PREFIX = "prefix"
    SUFFIX = "suffix"
    STREAM = "stream"
    ROLLOUT_STEP = "rollout_step"
    BRANCH_STEP = "branch_step"
    FINISH_STEP = "finish_step"
    TRANSFER = "transfer"


class Span(NamedTuple):
    """A stretch of work on a lane, or of a transfer on a link; `round` is the one in whose interval it started."""

    lane: str
    work: Work
    start_s: float
    end_s: float
    round: int
    rows: int


class Round(NamedTuple):
    """One verification, from handing the window to the target to the commit of its outcome.

    Attributes:
        num_accepted: drafted tokens committed (cut at the end of the sequence).
        num_committed: tokens appended, the target's own included.
        outcome: (num_accepted, next_token), cut as well: `NOT_COMMITTED` in place of a next token left out.
        hit: whether the next window came from a branch; None when no branch was asked for.
    """

    start_s: float
    end_s: float
    num_drafted: int
    num_accepted: int
    num_committed: int
    outcome: Outcome
    hit: bool | None


class LaneEvent(NamedTuple):
    """Something a user should know about a lane, such as the loss of the draft; `is_loss` is whether it was lost."""

    time_s: float
    lane: str
    text: str
    is_loss: bool = True


@dataclass(slots=True, kw_only=True)
class Trace:
    """The record of one decoded sequence.

    `world` is the one that wrote it; `prefill_s` the time from the request to the start of decoding, None where that is
    not known. `label` says what is not real about it, such as acceptance that was replayed.
    """

    world: Literal["simulated", "measured"]
    spans: Annotated[list[Span], FailFast()] = field(default_factory=list)
    rounds: Annotated[list[Round], FailFast()] = field(default_factory=list)
    events: Annotated[list[LaneEvent], FailFast()] = field(default_factory=list)
    prefill_s: float | None = None
    decode_s: float = 0.0
    label: str = ""
    _round_start_s: float = field(default=0.0, repr=False, compare=False)

    def __repr__(self) -> str:
        """One line: the spans would fill pages."""
        return f"<{self.world} Trace: {len(self.rounds)} rounds, {len(self.spans)} spans, {self.decode_s:.3f} s>"

    @property
    def has_loss(self) -> bool:
        """Whether a lane was lost."""
        return any(event.is_loss for event in self.events)

    def begin_round(self, now_s: float) -> None:
        """Begin a round: its window was handed to the target at `now_s`, the start of its first operation."""
        self._round_start_s = now_s

    def end_round(self, now_s: float, window: Window, verdict: Verdict, num_committed: int) -> None:
        """End the round: its verdict was committed, except for what the end of the sequence cut off.

        A token that the target decided on but that was not committed is known in one world only: the other has
        no text after the end. It becomes `NOT_COMMITTED`, so that both worlds write the same round.
        """
        num_accepted, next_token = verdict.num_accepted, verdict.next_token
        if num_accepted >= num_committed:
            num_accepted, next_token = num_committed, NOT_COMMITTED
        num_drafted, outcome = len(window.tokens), (num_accepted, next_token)
        self.rounds.append(Round(self._round_start_s, now_s, num_drafted, num_accepted, num_committed, outcome, None))

    def mark_hit(self, *, hit: bool) -> None:
        """Note whether a branch matched the last round's outcome."""
        self.rounds[-1] = Round._make((*self.rounds[-1][:-1], hit))
