"""Real runs of one sequence: the lanes of a method, the driver that runs the method, and the writer of its trace."""

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
    """Callbacks of a sequence: `on_tokens` with each round's tokens; `at_rest` between rounds, outside of the trace."""

    on_tokens: Callable[[tuple[int, ...]], object] | None = None
    at_rest: Callable[[], object] | None = None


NOBODY: Final = Listener()


def drive(flow: MethodFlow, on_reply: Callable[[object], None]) -> None:
    """Run a method to its end: wait for each handle that it yields, call `on_reply`, and send it the reply."""
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
        """See `Lanes`."""
        assert self._draft is not None, "a method without a draft asks for it"
        return self._draft

    @property
    def unfinished(self) -> bool:
        """See `Lanes`."""
        return self._sequence.unfinished

    def prefill(self, start: SequenceStart, traits: DrafterTraits | None) -> None:
        """Read the prompt in both lanes, at the same time unless the drafter reads the target's features."""
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
        """See `Lanes`."""
        committed = self._sequence.commit(window, verdict)
        self._writer.end_round(window, verdict, len(committed))
        if self._listener.on_tokens is not None:
            self._listener.on_tokens(committed)

    def rest(self, reply: object) -> None:
        """Call `at_rest` if all lanes are idle after this reply: a window, or without a draft a verdict."""
        at_rest = self._listener.at_rest
        if at_rest is not None and isinstance(reply, Verdict if self._draft is None else Window):
            self._writer.pause(at_rest)


class TraceWriter:
    """Writes the trace of a sequence. All processes of a machine share the clock (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.trace = Trace(world="measured")
        self._origin_s, self._stopped_s = time.perf_counter(), STOPS.total_s
        self.exit_sent_s = 0.0
        """When the last exit message left the target's lane."""

    def start(self) -> None:
        """Begin the time of prefill; loading and compilation came before."""
        self._origin_s, self._stopped_s = time.perf_counter(), STOPS.total_s

    def begin(self) -> None:
        """Begin the time of decoding; prefill was since `start`."""
        self.trace.prefill_s = time.perf_counter() - self._origin_s
        self._origin_s = time.perf_counter()

    def pause(self, action: Callable[[], object]) -> None:
        """Call `action` between two rounds, while no lane works, and leave its time out of the trace."""
        start_s, stopped_s = time.perf_counter(), STOPS.total_s
        action()
        self._origin_s += time.perf_counter() - start_s
        self._stopped_s += STOPS.total_s - stopped_s

    def span(self, lane: str, work: Work, start_s: float, end_s: float, rows: int) -> None:
        """Write work on a lane or link, with times of the shared clock."""
        self.trace.spans.append(Span(lane, work, start_s - self._origin_s, end_s - self._origin_s, 0, rows))

    def steps(self, lane: str, spans: Spans) -> None:
        """Write the steps that a draft lane has timed."""
        for work, start_s, end_s, rows in spans:
            self.span(lane, Work(work), start_s, end_s, rows)

    def begin_round(self, sent_s: float) -> None:
        """Begin a round, whose window was sent to the target at `sent_s`."""
        self.trace.begin_round(sent_s - self._origin_s)

    def end_round(self, window: Window, verdict: Verdict, num_committed: int) -> None:
        """End a round, after the commit of its verdict."""
        self.trace.decode_s = time.perf_counter() - self._origin_s
        self.trace.end_round(self.trace.decode_s, window, verdict, num_committed)

    def event(self, lane: str, text: str, *, is_loss: bool = True) -> None:
        """Write something that a user should know."""
        self.trace.events.append(LaneEvent(time.perf_counter() - self._origin_s, lane, text, is_loss))

    def finish(self, target_lane: str) -> Trace:
        """Return the trace: spans sorted, each in the round that its start is in, and none after the last commit."""
        trace = self.trace
        if (stopped_s := STOPS.total_s - self._stopped_s) > 0:
            warning = f"mirrorsd stood still for {stopped_s:.1f} s, stopped or without a core, which times may hold"
            self.event(target_lane, warning, is_loss=False)
        ends = [entry.end_s for entry in trace.rounds]
        kept = sorted((span for span in trace.spans if ends and span.start_s < ends[-1]), key=lambda span: span.start_s)
        trace.spans[:] = [span._replace(round=bisect_right(ends, span.start_s)) for span in kept]
        return trace
