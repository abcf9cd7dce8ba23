"""All that a lane can be asked: a class for each operation, with its fields, and the type of its reply.

The driver sends an operation (`runtime.lanes.lane.Lane.request`); the lane's roles name the method that handles it
(`Operation.handled_by`). Mismatches are type errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar, get_args, get_origin

from decoding.messages import ExitSignal, Verdict, Window
from decoding.schedule import Method, Schedule
from runtime.backends.lane_device import Dtype
from runtime.verification.replayed_text import ReplayedText
from runtime.wire import codec
from runtime.wire.channel import Block, Message
from runtime.wire.measurement import Measurement

Spans = Sequence[tuple[str, float, float, int]]
"""Steps of the draft: `decoding.trace.Work`, start, end, rows."""

R = TypeVar("R")


class Answer(NamedTuple, Generic[R]):
    """A lane's reply, and when the operation started and ended there (`time.perf_counter`)."""

    value: R
    start_s: float
    end_s: float


class Handler(NamedTuple):
    """`name`: the operation; `run`: what answers it."""

    name: str
    run: Callable[[Message], codec.Written]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation(Generic[R]):
    """Something that a lane is asked to do, and to reply to with a value of type R."""

    def message(self, request_id: int | None) -> Message:
        """The operation on its way; without an id it is not answered."""
        fields, blocks = codec.write(self)
        return Message({"op": type(self).__name__, "id": request_id, "fields": fields}, tuple(blocks))

    @classmethod
    def answer(cls, message: Message) -> Answer[R]:
        """Read the answer to the operation."""
        fields = message.fields
        [base] = [base for base in cls.__orig_bases__ if get_origin(base) is Operation]  # type: ignore[attr-defined]
        [reply_type] = get_args(base)
        return Answer(codec.read(reply_type, fields["reply"], message.blocks), fields["start_s"], fields["end_s"])

    @classmethod
    def handled_by(cls, handle: Callable[[Self], R]) -> Handler:
        """Return what handles the operation in its lane."""

        def run(message: Message) -> codec.Written:
            return codec.write(handle(codec.read(cls, message.fields["fields"], message.blocks)))

        return Handler(cls.__name__, run)


# Of every lane


@dataclass(frozen=True, kw_only=True, slots=True)
class Ping(Operation[None]):
    """Do nothing; `load` is a payload to send along."""

    load: tuple[Block, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadTarget(Operation[None]):
    """Load the target, and its exits if there are trained ones; from then on its operations are there."""

    target: Path
    exits: Path | None
    dtype: Dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadStreams(Operation[None]):
    """Load streams for the target that is there."""

    drafter: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterTraits:
    """The needs and the methods of a drafter; see `runtime.drafters.window_drafter.WindowDrafter`."""

    folder: Path
    feature_layers: tuple[int, ...]
    raw_features: bool
    methods: tuple[Method, ...]
    num_streams: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadDraft(Operation[DrafterTraits]):
    """Load a drafter of this target; from then on its operations are there."""

    target: Path
    drafter: Path
    dtype: Dtype


class RowInvariance(NamedTuple):
    """Result of the row-invariance test.

    Attributes:
        is_invariant: whether a row has the same bits whatever rows are computed with it.
        least_rows: rows to which smaller calls are padded for it; 1 for no padding.
        instructions: the limit on the CPU's instructions for it, in words; empty for none.
    """

    is_invariant: bool
    least_rows: int
    instructions: str

    @property
    def is_plain(self) -> bool:
        """Whether rows are invariant without padding and without a limit."""
        return self.is_invariant and self.least_rows == 1 and not self.instructions

    def __str__(self) -> str:
        """Say it for people, such as `exact, with calls padded to 2 rows, instructions up to AVX512_CORE_BF16`."""
        padded = f"calls padded to {self.least_rows} rows" if self.least_rows > 1 else ""
        means = ", ".join(filter(None, (padded, self.instructions)))
        exact = "exact" if self.is_invariant else "not exact: texts may differ from plain decoding's in near ties"
        return f"{exact}, with {means}" if means else exact


class CheckRows(Operation[RowInvariance]):
    """Test whether the target says the same of a row to the last bit, whatever rows are computed with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure(Operation[list[float]]):
    """Time a part some number of times; replies the seconds of every run."""

    measurement: Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepBusy(Operation[list[float]]):
    """Time a part again and again until another message comes; replies the seconds of every run."""

    measurement: Measurement


class Stop(Operation[None]):
    """Do nothing: a message that ends `KeepBusy` by merely being there."""


# Of the target


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceStart:
    """The sequence that starts: its prompt, how long it may get, how it is decoded and sampled, or what is replayed."""

    prompt: Sequence[int]
    max_new_tokens: int
    schedule: Schedule
    temperature: float
    seed: int
    replay: ReplayedText | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareTarget(Operation[None]):
    """Compile what the sequence needs, where the target's device compiles."""

    start: SequenceStart
    feature_layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillTarget(Operation[Block | None]):
    """Read a prompt; replies the features of all its positions but the last, if there are feature layers."""

    start: SequenceStart
    feature_layers: tuple[int, ...]
    raw_features: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Verify(Operation[Verdict]):
    """All layers over the window."""

    window: Window


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream(Operation[Verdict]):
    """`Verify` by a target whose streams draft the next window, which the verdict carries."""

    window: Window


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix(Operation[ExitSignal]):
    """The layers up to an exit, and its best ids of every row."""

    window: Window
    exit_layer: int
    num_candidates: int


class Suffix(Operation[Verdict]):
    """The remaining layers of the rows last given to `Prefix`."""


# Of the draft


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareDraft(Operation[None]):
    """Compile what the sequence needs, where the draft's device compiles."""

    start: SequenceStart


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillDraft(Operation[None]):
    """Read a prompt, with the target's features of it where the schedule has any."""

    start: SequenceStart
    features: Block | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafted:
    """A window, the steps done since the last reply, and whether a branch had the outcome (None without branches)."""

    window: Window
    spans: Spans
    hit: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout(Operation[Drafted]):
    """Draft a window after the tokens committed since the last one, with the target's features of them."""

    committed: Sequence[int]
    features: Block | None


class Branch(Operation[None]):
    """Start preparing for the outcomes of the window last drafted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Join(Operation[None]):
    """Add the exit's roots to the branches."""

    signal: ExitSignal


@dataclass(frozen=True, kw_only=True, slots=True)
class Take(Operation[Drafted]):
    """Keep the branch of an outcome, or none, and finish the next window."""

    num_accepted: int
    next_token: int


class Drop(Operation[Spans]):
    """Forget the branches: the sequence has ended; replies the steps done since the last reply."""
