"""The lane calls of real runs; a handle is a function that waits for the reply.

A lane whose call exceeds its `Deadline` counts as hung and is killed. A draft lane that died, hung or failed is lost:
the trace records it, and from then on its replies are empty windows, without a wait. A draft in the target's lane
cannot be lost alone.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from decoding.errors import ConfigError, LaneError, LaneTimeoutError, MemoryFitError
from decoding.messages import NO_WINDOW, ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from decoding.sequence import DecodedSequence
from decoding.trace import Work
from runtime.lanes.lane import Lane, Reply
from runtime.target.target_model import TargetModel
from runtime.wire.channel import Block
from runtime.wire.operations import Drafted, DrafterTraits, SequenceStart, TimedReply
from runtime.wire.stops import STOPS
from runtime.worker.roles import DraftRole
from runtime.worker.server import LaneServer

if TYPE_CHECKING:
    from runtime.lanes.sequence_lanes import TraceWriter

P = ParamSpec("P")
R = TypeVar("R")

DRAFT_LOAD_DEADLINE_S: Final = 600.0
"""A draft lane that loads or compiles for this long counts as hung; 8 billion weights take a tenth of it."""
_ROWS: Final = 64
"""Rows by which a deadline grows by `least_s`."""
_PATIENCE: Final = 20
"""A deadline is at least this many times the longest operation so far, as a machine under load is slow but not hung."""


class Deadline:
    """How long a lane may take for an operation of one sequence."""

    def __init__(self, least_s: float) -> None:
        self.least_s = least_s
        self._longest_s = 0.0

    def of(self, num_rows: int) -> float:
        """Return the seconds for an operation over `num_rows` rows."""
        return max(self.least_s * (1 + num_rows / _ROWS), _PATIENCE * self._longest_s)

    def wait(self, lane: Lane, reply: Reply[R], num_rows: int, extra_s: float = 0.0) -> TimedReply[R]:
        """Return the answer; kill the lane and raise `LaneTimeoutError` after the deadline plus `extra_s`."""
        try:
            answer = reply.result(self.of(num_rows) + extra_s)
        except LaneTimeoutError:
            lane.kill("it did not answer in time")
            raise
        if answer.start_s >= STOPS.until_s:
            self._longest_s = max(self._longest_s, answer.end_s - answer.start_s)
        return answer


class TargetCalls:
    """Implements `decoding.lanes.TargetLane`; a `reader` is a drafter that reads the target's features."""

    def __init__(self, lane: Lane, schedule: Schedule, writer: "TraceWriter", deadline: Deadline) -> None:
        self._lane, self._schedule, self._writer, self._deadline = lane, schedule, writer, deadline
        lane.answers_within_s = lambda: deadline.of(schedule.num_rows)

    def prepare(self, start: SequenceStart, reader: DrafterTraits | None) -> None:
        """Compile what the sequence needs, if the device compiles; like loading, this has no deadline.

        Before, a ping finds a lane that hangs, which is killed; it gets extra time, as the lane may still be busy with
        the request of an interrupted caller.
        """
        if self._lane.spec.device.prepares:
            ready = self._lane.request(LaneServer.ping)
            self._deadline.wait(self._lane, ready, 0, extra_s=DRAFT_LOAD_DEADLINE_S)
            prepared = self._lane.request(
                TargetModel.prepare,
                num_prompt=len(start.prompt),
                num_slots=start.num_slots,
                rows=start.window_rows,
                feature_layers=() if reader is None else reader.feature_layers,
                exit_layer=start.schedule.exit_layer,
            )
            prepared.result()

    def prefill(self, start: SequenceStart, reader: DrafterTraits | None) -> Callable[[], TimedReply[Block | None]]:
        """Start a sequence; the reply has the features of the prompt that `reader` reads."""
        layers, is_raw = ((), False) if reader is None else (reader.feature_layers, reader.raw_features)
        if self._schedule.traits.drafts_itself:
            size, depth = self._schedule.tree_size, self._schedule.num_speculative_tokens
            self._lane.post(TargetModel.set_tree, size=size, depth=depth)
        reply = self._lane.request(
            TargetModel.prefill,
            start.prompt,
            capacity=start.num_slots,
            sampling=start.sampling,
            feature_layers=layers,
            raw_features=is_raw,
        )
        return lambda: self._deadline.wait(self._lane, reply, len(start.prompt))

    def verify(self, window: Window) -> Callable[[], Verdict]:
        """See `TargetLane`."""
        return self._verdict(Work.VERIFY, self._begin(window, TargetModel.verify))

    def stream(self, window: Window) -> Callable[[], Verdict]:
        """See `TargetLane`."""
        return self._verdict(Work.STREAM, self._begin(window, TargetModel.stream))

    def prefix(self, window: Window, exit_layer: int) -> Callable[[], ExitSignal]:
        """See `TargetLane`."""
        reply = self._begin(window, TargetModel.prefix, exit_layer, self._schedule.num_exit_candidates)

        def wait() -> ExitSignal:
            answer = self._answer(Work.PREFIX, reply)
            self._writer.exit_sent_s = answer.end_s
            return answer.value

        return wait

    def suffix(self) -> Callable[[], Verdict]:
        """See `TargetLane`."""
        return self._verdict(Work.SUFFIX, self._lane.request(TargetModel.suffix))

    def _begin(
        self,
        window: Window,
        method: Callable[Concatenate[TargetModel, Window, P], R],
        *args: P.args,
        **options: P.kwargs,
    ) -> Reply[R]:
        """Begin a round: request an operation on its window, without alternatives, which only the draft uses."""
        self._num_rows = len(window.tokens) + 1
        reply = self._lane.request(method, window._replace(alternatives=()), *args, **options)
        self._writer.begin_round(reply.sent_s)
        return reply

    def _verdict(self, work: Work, reply: Reply[Verdict]) -> Callable[[], Verdict]:
        return lambda: self._answer(work, reply).value

    def _answer(self, work: Work, reply: Reply[R]) -> TimedReply[R]:
        answer = self._deadline.wait(self._lane, reply, self._num_rows)
        self._writer.span(self._lane.name, work, answer.start_s, answer.end_s, self._num_rows)
        return answer


class DraftCalls:
    """Implements `decoding.lanes.DraftLane` and `Branches`; the branches are in the draft's lane.

    Rollouts start after the committed tokens of `sequence`, of which the lane has been sent `_num_sent` new ones.
    """

    def __init__(
        self, lane: Lane, schedule: Schedule, writer: "TraceWriter", deadline: Deadline, sequence: DecodedSequence
    ) -> None:
        self._lane, self._schedule, self._writer, self._deadline = lane, schedule, writer, deadline
        self._sequence, self._num_sent, self._is_lost = sequence, 0, False
        lane.answers_within_s = lambda: deadline.of(schedule.num_rows)

    def prepare(self, start: SequenceStart) -> None:
        """Compile what the sequence needs, if the device compiles; the deadline is that of loading."""
        if self._is_lost or not self._lane.spec.device.prepares:
            return
        try:
            self._lane.request(DraftRole.prepare, start).result(DRAFT_LOAD_DEADLINE_S)
        except (LaneError, MemoryFitError) as error:
            self.lose(error)

    def prefill(self, start: SequenceStart, features: Block | None) -> Callable[[float], None]:
        """Start a sequence; the handle takes the target's time for the prompt, by which it extends the deadline."""
        reply = self._lane.request(DraftRole.prefill, start, features)
        return lambda target_s: self._answer(reply, extra_s=target_s, num_rows=len(start.prompt))

    def rollout(self, verdict: Verdict | None = None) -> Callable[[], Window]:
        """See `DraftLane`."""
        sequence, features = self._sequence, None if verdict is None else verdict.features
        committed = self._unsent()
        num_read = 0 if features is None or verdict is None else verdict.num_accepted + 1
        if self._schedule.reads_features and len(committed) != num_read and not self._is_lost:
            name = self._schedule.method
            raise ConfigError(
                f"{name} drafts not once in every round, by its verdict: a draft that reads features has to"
            )
        reply = self._lane.request(DraftRole.rollout, committed, features)
        if len(sequence.prompt) > 1 or sequence.tokens:
            return self._window(reply)
        # a one-token prompt needed no pass, so this is the lane's first one, and weights may still be on the disk
        return self._window(reply, extra_s=self._schedule.num_speculative_tokens * self._deadline.least_s)

    def branch(self, window: Window) -> Self:
        """See `DraftLane`; `window` is the one last drafted."""
        if window.tokens:
            self._lane.post(DraftRole.branch)
        return self

    def join(self, signal: ExitSignal) -> None:
        """See `Branches`."""
        if self._is_lost:
            return
        link, rows = f"{self._schedule.target_lane}->{self._lane.name}", len(signal.candidates)
        # the clock is read before sending: a lane that wakes up on this core may delay the sender for milliseconds
        self._writer.span(link, Work.TRANSFER, self._writer.exit_sent_s, time.perf_counter(), rows)
        self._lane.post(DraftRole.join, signal)

    def take(self, verdict: Verdict) -> Callable[[], Window]:
        """See `Branches`."""
        self._unsent()  # the verdict has the new tokens
        return self._window(self._lane.request(DraftRole.take, verdict.num_accepted, verdict.next_token))

    def _unsent(self) -> tuple[int, ...]:
        """Return the tokens committed since the last request for a window; a method may draft in some rounds only."""
        tokens, start = self._sequence.tokens, self._num_sent
        self._num_sent = len(tokens)
        return tuple(tokens[start:])

    def drop(self) -> None:
        """Drop the branches after the end of the sequence, when the loss of the lane is no longer an error."""
        if self._is_lost:
            return
        try:
            answer = self._deadline.wait(self._lane, self._lane.request(DraftRole.drop), self._schedule.num_rows)
        except (LaneError, MemoryFitError) as error:
            self._end_lane()
            self._writer.event(self._lane.name, f"{error}, after the sequence had ended")
        else:
            self._writer.steps(self._lane.name, answer.value)

    def _window(self, reply: Reply[Drafted], *, extra_s: float = 0.0) -> Callable[[], Window]:
        def wait() -> Window:
            drafted = self._answer(reply, extra_s=extra_s)
            if drafted is None:
                return NO_WINDOW
            self._writer.steps(self._lane.name, drafted.spans)
            if drafted.hit is not None:
                self._writer.trace.mark_hit(hit=drafted.hit)
            return drafted.window

        return wait

    def _answer(self, reply: Reply[R], *, extra_s: float = 0.0, num_rows: int | None = None) -> R | None:
        if self._is_lost:
            return None
        rows = self._schedule.num_rows if num_rows is None else num_rows
        try:
            return self._deadline.wait(self._lane, reply, rows, extra_s).value
        except (LaneError, MemoryFitError) as error:  # a device may be full by now
            self.lose(error)
            return None

    def lose(self, error: LaneError | MemoryFitError) -> None:
        """Give the draft up; raise the error if the draft is in the target's lane."""
        if self._schedule.is_pooled:
            raise error
        self._end_lane()
        self._is_lost = True
        self._writer.event(self._lane.name, f"{error}; the target goes on alone")

    def _end_lane(self) -> None:
        """Kill a separate draft lane, even if only an operation failed, as its state may be inconsistent."""
        if not self._schedule.is_pooled:
            self._lane.kill("its draft was given up")


def require_fitting(schedule: Schedule, traits: DrafterTraits) -> None:
    """Raise `ConfigError` if a drafter does not support a schedule."""
    name, layers = traits.folder.name, traits.feature_layers
    if schedule.method not in traits.methods:
        raise ConfigError(
            f"method is {schedule.method}, but the drafter {name} is one for {' or '.join(traits.methods)}"
        )
    if schedule.draft_streams > traits.num_streams:
        raise ConfigError(
            f"draft_streams is {schedule.draft_streams}: {name} has {traits.num_streams or 'none'} on "
            f"{schedule.draft_lane}; streams of a draft run only on lanes of torch, such as cpu0"
        )
    if schedule.exit_features and not layers:
        raise ConfigError("exit_features is true, but this draft reads no features of its target")
    if schedule.exit_features and schedule.exit_layer is not None and max(layers) > schedule.exit_layer:
        raise ConfigError(
            f"exit_layer is {schedule.exit_layer}, but this draft reads features of layers {list(layers)}"
        )
