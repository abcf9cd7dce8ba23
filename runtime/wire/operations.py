"""Requests to a lane: an operation is a method of a role object in the lane's process, called by its name.

The driver passes the method itself (`runtime.lanes.lane.Lane.request`), so type checking finds a wrong name or
argument. The roles are `LaneServer`, `DraftRole` and `MeasureRole` of `runtime.worker`, and
`runtime.target.target_model.TargetModel`. A method's type hints determine how its arguments and reply are encoded
(`codec`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from decoding.messages import Window
from decoding.schedule import Method, Schedule
from runtime.verification.replayed_text import ReplayedText
from runtime.verification.rules import Sampling
from runtime.wire import codec
from runtime.wire.channel import Message

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

Handler = Callable[[Message], codec.Written]
"""Executes the operation of a message and returns its encoded reply."""


def operation(method: F) -> F:
    """Mark a method of a role as an operation that the driver may request."""
    method.is_operation = True  # type: ignore[attr-defined]
    return method


def call(request_id: int | None, method: Callable[..., Any], *args: Any, **options: Any) -> Message:
    """Return the message that requests an operation; without an id it is not answered."""
    fields, blocks = codec.write(dict(zip(_arguments(method), args, strict=False)) | options)
    return Message({"op": method.__qualname__, "id": request_id, "fields": fields}, tuple(blocks))


def handlers_of(role: object) -> dict[str, Handler]:
    """Return the handler of each operation of a role, by the operation's name."""
    kind = type(role)
    methods = [method for base in kind.__mro__ for method in vars(base).values() if hasattr(method, "is_operation")]
    return {method.__qualname__: partial(_handled, role, getattr(kind, method.__name__)) for method in methods}


def _handled(role: object, method: Callable[..., Any], message: Message) -> codec.Written:
    return codec.write(method(role, **codec.read_fields(_hints(method), message.fields["fields"], message.blocks)))


class TimedReply(NamedTuple, Generic[R]):
    """A lane's reply, and when the operation started and ended in the lane (`time.perf_counter`)."""

    value: R
    start_s: float
    end_s: float


def answer_to(method: Callable[..., R], message: Message) -> TimedReply[R]:
    """Return the reply in the answer to an operation."""
    fields = message.fields
    reply = codec.read(_hints(method)["return"], fields["reply"], message.blocks)
    return TimedReply(reply, fields["start_s"], fields["end_s"])


_hints = lru_cache(get_type_hints)


@lru_cache
def _arguments(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in _hints(method) if name != "return")


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceStart:
    """A new sequence: its prompt, largest length, schedule and sampling, and a text to replay, if any."""

    prompt: Sequence[int]
    max_new_tokens: int
    schedule: Schedule
    temperature: float
    seed: int
    replay: ReplayedText | None = None

    @property
    def num_slots(self) -> int:
        """The target's KV positions at the end, with a last window."""
        return len(self.prompt) + self.max_new_tokens + self.schedule.num_rows

    @property
    def window_rows(self) -> tuple[int, ...]:
        """The usual numbers of rows of a verification."""
        full = self.schedule.num_rows
        return (1, full) if self.schedule.traits.varies else (full,)

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return Sampling(self.schedule.verification, self.temperature, self.seed, self.replay)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterTraits:
    """Facts about a loaded drafter (see `WindowDrafter`); `kept` are the folders of all drafters in its lane."""

    folder: Path
    feature_layers: tuple[int, ...]
    raw_features: bool
    methods: tuple[Method, ...]
    num_streams: int
    kept: tuple[Path, ...] = ()


Spans = Sequence[tuple[str, float, float, int]]
"""Steps of the draft: kind (`decoding.trace.Work`), start, end, rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafted:
    """A window, the steps since the last reply, and whether a branch had the outcome (None if none was looked up)."""

    window: Window
    spans: Spans
    hit: bool | None = None


class RowInvariance(NamedTuple):
    """Whether a lane is batch-invariant: a row has the same bits, whatever rows are computed with it.

    Smaller calls are padded to `least_rows`; `instructions` is the limit of the CPU's instruction set in words, or
    empty.
    """

    is_invariant: bool
    least_rows: int
    instructions: str

    @property
    def is_plain(self) -> bool:
        """Whether rows are invariant without padding and without a limit."""
        return self.is_invariant and self.least_rows == 1 and not self.instructions

    def __str__(self) -> str:
        """Return words such as `exact, with calls padded to 2 rows, instructions up to AVX512_CORE_BF16`."""
        padded = f"calls padded to {self.least_rows} rows" if self.least_rows > 1 else ""
        means = ", ".join(filter(None, (padded, self.instructions)))
        exact = "exact" if self.is_invariant else "not exact: texts may differ from plain decoding's in near ties"
        return f"{exact}, with {means}" if means else exact
