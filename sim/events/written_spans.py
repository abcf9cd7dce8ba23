"""What a trace tells of the work on lanes and links: spans, written when a run has ended."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from sim.events.round_costs import RoundCosts, Step
from sim.machine.link import Path
from sim.machine.shared_memory import Run


class Steps(NamedTuple):
    """Draft steps in a row, the first of which may have tokens to catch up with."""

    work: Work
    steps: Sequence[Step]

    @property
    def seconds(self) -> float:
        """Of all."""
        return sum([step.seconds for step in self.steps])


class WrittenSpans:
    """The spans of one trace."""

    def __init__(self, trace: Trace, schedule: Schedule, costs: RoundCosts) -> None:
        self._trace, self._costs = trace, costs
        self._target_lane, self._draft_lane = schedule.target_lane, schedule.draft_lane or ""

    def write_segment(self, segment: int, step: Step, run: Run) -> None:
        """Write an operation of the target, at its own end."""
        start_s, end_s = run.times_s([run.work_s])
        self._write(self._target_lane, self._costs.plan.segments[segment].work, start_s, end_s, step.rows)
        self._write_collectives(self._target_lane, run, 0.0, step)

    def write_steps(self, steps: Steps, run: Run) -> None:
        """Write a run of the draft's steps, at its own end."""
        done_s, times_s = 0.0, run.times_s([step.seconds for step in steps.steps])
        for (start_s, end_s), step in zip(pairwise(times_s), steps.steps, strict=True):
            self._write(self._draft_lane, steps.work, start_s, end_s, step.rows)
            self._write_collectives(self._draft_lane, run, done_s, step)
            done_s += step.seconds

    def send(self, path: Path, num_bytes: float, rows: int, sent_s: float) -> float:
        """Write a message's way over the links of a path; when it arrives."""
        for link in path:
            start_s, sent_s = max(sent_s, link.free_s), link.arrival_s(num_bytes, sent_s)
            self._write(link.name, Work.TRANSFER, start_s, sent_s, rows)
        return sent_s

    def finish(self) -> None:
        """What would start after the last commit is no part of the trace."""
        trace = self._trace
        trace.spans[:] = [span for span in trace.spans if span.start_s < trace.decode_s]

    def _write(self, lane: str, work: Work, start_s: float, end_s: float, rows: int) -> None:
        """Write a span. It belongs to the round whose commit is the next one after its start."""
        trace = self._trace
        round_index = len(trace.rounds)
        while round_index and trace.rounds[round_index - 1].end_s > start_s:
            round_index -= 1
        trace.spans.append(Span(lane, work, start_s, end_s, round_index, rows))

    def _write_collectives(self, lane: str, run: Run, done_s: float, step: Step) -> None:
        """Write what the devices of a lane exchange in a step, which it divides into equal parts."""
        collectives_s = self._costs.collectives_s(lane, step)
        if not collectives_s:
            return
        computed_s = (step.seconds - sum(collectives_s)) / len(collectives_s)
        pieces_s = [done_s, *chain(*((computed_s, seconds) for seconds in collectives_s))]
        times_s = run.times_s(pieces_s)[2:]
        for start_s, end_s in zip(times_s[::2], times_s[1::2], strict=True):
            if end_s > start_s:
                self._write(f"{lane}->{lane}", Work.TRANSFER, start_s, end_s, step.rows)
