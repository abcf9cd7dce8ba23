"""The lanes of the real world for one sequence, the driver that runs a method over them, and the trace they leave."""

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from decoding.lanes import MethodFlow
from decoding.messages import Verdict, Window
from decoding.sequence import DecodedSequence
from decoding.trace import LaneEvent, Span, Trace, Work
from runtime.lanes.lane_calls import DraftCalls, TargetCalls
from runtime.wire.operations import DrafterTraits, SequenceStart, Spans
from runtime.wire.stops import STOPS


class Listener(NamedTuple):
    """Callbacks while a sequence is decoded: with each round's tokens, and between rounds, outside the trace."""

    on_tokens: Callable[[tuple[int, ...]], object] | None = None
    at_rest: Callable[[], object] | None = None


NOBODY: Final = Listener()


def drive(flow: MethodFlow, on_reply: Callable[[object], None]) -> None:
    """Run a method to its end: wait for each handle that it yields, tell `on_reply`, and send the reply back."""
    try:
        wait: Any = next(flow)
        while True:
            reply = wait()
            on_reply(reply)
            wait = flow.send(reply)
    except StopIteration:
        return
    finally:
        flow.close()


class RuntimeLanes:
    """Implements `decoding.lanes.Lanes`."""

    def __init__(
        self,
        *,
        target: TargetCalls,
        draft: DraftCalls | None,
        sequence: DecodedSequence,
        writer: "TraceWriter",
        listener: Listener,
    ) -> None:
        self.target, self._draft, self._sequence, self._writer = target, draft, sequence, writer
        self._listener = listener

    @property
    def draft(self) -> DraftCalls:
        """The draft's lane."""
        assert self._draft is not None, "a method without a draft asks for it"
        return self._draft

    @property
    def unfinished(self) -> bool:
        """Whether the sequence wants more tokens."""
        return self._sequence.unfinished

    def prefill(self, start: SequenceStart, traits: DrafterTraits | None) -> None:
        """Read the prompt in both lanes: at once, or the draft after the target if it reads its features."""
        reader = traits if start.schedule.reads_features else None
        self.target.prepare(start, reader)
        if self._draft is not None:
            self._draft.prepare(start)
        self._writer.start()
        of_target, of_draft = self.target.prefill(start, reader), None
        if self._draft is not None and reader is None:
            of_draft = self._draft.prefill(start, None)
        answer = of_target()
        if self._draft is not None:
            of_draft = of_draft or self._draft.prefill(start, answer.value)
            of_draft(answer.end_s - answer.start_s)
        self._writer.begin()

    def commit(self, window: Window, verdict: Verdict) -> None:
        """End the round: append the accepted tokens to the sequence and write it to the trace."""
        committed = self._sequence.commit(window, verdict)
        self._writer.end_round(window, verdict, len(committed))
        if self._listener.on_tokens is not None:
            self._listener.on_tokens(committed)

    def rest(self, reply: object) -> None:
        """Call `at_rest` if this reply leaves all lanes idle: a window does, and a verdict where there is no draft."""
        at_rest = self._listener.at_rest
        if at_rest is not None and isinstance(reply, Verdict if self._draft is None else Window):
            self._writer.pause(at_rest)


class TraceWriter:
    """Writes one sequence's trace; all processes of a machine share the clock (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.trace = Trace(world="measured")
        self._origin_s, self._stopped_s = time.perf_counter(), STOPS.total_s
        self.exit_sent_s = 0.0
        """When the last exit message left the target's lane."""

    def start(self) -> None:
        """Start to read the prompt now; what happened before was loading and compilation."""
        self._origin_s, self._stopped_s = time.perf_counter(), STOPS.total_s

    def begin(self) -> None:
        """Start decoding now; what happened since `start` was prefill."""
        self.trace.prefill_s = time.perf_counter() - self._origin_s
        self._origin_s = time.perf_counter()

    def pause(self, action: Callable[[], object]) -> None:
        """Do something else between two rounds, while no lane works: the trace goes on as if it had taken no time."""
        start_s, stopped_s = time.perf_counter(), STOPS.total_s
        action()
        self._origin_s += time.perf_counter() - start_s
        self._stopped_s += STOPS.total_s - stopped_s

    def span(self, lane: str, work: Work, start_s: float, end_s: float, rows: int) -> None:
        """Write work on a lane or link, at times of the shared clock."""
        self.trace.spans.append(Span(lane, work, start_s - self._origin_s, end_s - self._origin_s, 0, rows))

    def steps(self, lane: str, spans: Spans) -> None:
        """Write steps of the draft, as its lane timed them."""
        for work, start_s, end_s, rows in spans:
            self.span(lane, Work(work), start_s, end_s, rows)

    def begin_round(self, sent_s: float) -> None:
        """Start a round: its window was handed to the target."""
        self.trace.begin_round(sent_s - self._origin_s)

    def end_round(self, window: Window, verdict: Verdict, num_committed: int) -> None:
        """End a round: its verdict is committed."""
        self.trace.decode_s = time.perf_counter() - self._origin_s
        self.trace.end_round(self.trace.decode_s, window, verdict, num_committed)

    def event(self, lane: str, text: str, *, is_loss: bool = True) -> None:
        """Write something that a user should know."""
        self.trace.events.append(LaneEvent(time.perf_counter() - self._origin_s, lane, text, is_loss))

    def finish(self, target_lane: str) -> Trace:
        """Return the trace: spans sorted, each in the round whose verdict comes next, none after the last commit."""
        trace = self.trace
        if (stopped_s := STOPS.total_s - self._stopped_s) > 0:
            told = f"mirrorsd stood still for {stopped_s:.1f} s, stopped or without a core, which times may hold"
            self.event(target_lane, told, is_loss=False)
        ends = [entry.end_s for entry in trace.rounds]
        kept = sorted((span for span in trace.spans if ends and span.start_s < ends[-1]), key=lambda span: span.start_s)
        trace.spans[:] = [span._replace(round=bisect_right(ends, span.start_s)) for span in kept]
        return trace
