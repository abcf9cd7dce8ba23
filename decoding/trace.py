"""The trace of a decoded sequence, simulated or real: spans of work on lanes, and rounds. Metrics are computed from it.

Times are in seconds from the start of decoding, after the prefill.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import FailFast

from decoding.messages import Outcome, Verdict, Window

NOT_COMMITTED = -1
"""The next token in the outcome of a round whose sequence ended before that token."""


class Work(StrEnum):
    """Kinds of span, for simulated and real runs, calibration and reports."""

    VERIFY = "verify"
    PREFIX = "prefix"
    SUFFIX = "suffix"
    STREAM = "stream"
    ROLLOUT_STEP = "rollout_step"
    BRANCH_STEP = "branch_step"
    FINISH_STEP = "finish_step"
    TRANSFER = "transfer"


class Span(NamedTuple):
    """A stretch of work on a lane, or a transfer on a link; `round` is the index of the round in which it started."""

    lane: str
    work: Work
    start_s: float
    end_s: float
    round: int
    rows: int


class Round(NamedTuple):
    """One verification, from handing the window to the target to the commit of its outcome.

    Attributes:
        num_accepted: drafted tokens that were committed, none after the end of the sequence.
        num_committed: tokens appended to the sequence, the target's next token included.
        outcome: (num_accepted, next_token); the token is `NOT_COMMITTED` if the sequence ended before it.
        hit: whether the next window came from a branch; None if no branch was looked up.
    """

    start_s: float
    end_s: float
    num_drafted: int
    num_accepted: int
    num_committed: int
    outcome: Outcome
    hit: bool | None


class LaneEvent(NamedTuple):
    """Something a user should know about a lane; `is_loss` says whether the lane was lost."""

    time_s: float
    lane: str
    text: str
    is_loss: bool = True


@dataclass(slots=True, kw_only=True)
class Trace:
    """The trace of one decoded sequence.

    `prefill_s` is the time from the request to the start of decoding, None if unknown. `label` says what is not real,
    such as replayed acceptance.
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
        """Return one line, as the spans would fill pages."""
        return f"<{self.world} Trace: {len(self.rounds)} rounds, {len(self.spans)} spans, {self.decode_s:.3f} s>"

    @property
    def has_loss(self) -> bool:
        """Whether a lane was lost."""
        return any(event.is_loss for event in self.events)

    def begin_round(self, now_s: float) -> None:
        """Begin a round whose first operation started at `now_s`."""
        self._round_start_s = now_s

    def end_round(self, now_s: float, window: Window, verdict: Verdict, num_committed: int) -> None:
        """End the round at `now_s`, after `num_committed` tokens of its verdict were committed.

        A next token beyond the end of the sequence becomes `NOT_COMMITTED`: a replayed record has no text there, and
        simulated and real rounds have to be equal.
        """
        num_accepted, next_token = verdict.num_accepted, verdict.next_token
        if num_accepted >= num_committed:
            num_accepted, next_token = num_committed, NOT_COMMITTED
        num_drafted, outcome = len(window.tokens), (num_accepted, next_token)
        self.rounds.append(Round(self._round_start_s, now_s, num_drafted, num_accepted, num_committed, outcome, None))

    def mark_hit(self, *, hit: bool) -> None:
        """Set whether a branch had the last round's outcome."""
        self.rounds[-1] = Round._make((*self.rounds[-1][:-1], hit))
