"""A batch of sequences in the event world: each has its own method generator, and all go through rounds in lock-step.

A lane call starts when all sequences have made it. It is one operation with the rows of all sequences, each at its own
context, and one message carries the data of all. When a sequence ends, another one takes its place (continuous
batching), until all initial sequences have ended.

After a mirror round the draft finishes the windows of sequences with a hit; sequences with a miss verify a single row
in the next round. If all missed, the draft drafts new windows for all.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, groupby, islice, zip_longest
from typing import Any

from simpy import Environment, Event

from costs.round_plan import DRAFT_STEPS, EXIT_STEPS, StepKind
from costs.ticks import one_in_ticks
from decoding.errors import ConfigError
from decoding.lanes import MethodFlow
from decoding.messages import ExitSignal
from decoding.schedule import Schedule
from decoding.trace import Trace, Work
from sim.acceptance.branch_hits import MISS
from sim.acceptance.replay import Outcomes
from sim.events.event_lanes import SimulatedBranches, SimulatedLanes, Steps, WrittenSpans
from sim.events.round_costs import RoundCosts, Step
from sim.events.sequence_in_batch import SequenceInBatch
from sim.machine import Path, send_along

Begun = tuple[Event, Callable[[SequenceInBatch], object]]
"""The end of a started operation, and the function that gives each sequence its reply."""
LaneCall = Callable[[], Begun | None]
"""Starts an operation that all sequences have requested; returns None if it has no reply."""
_NO_SIGNAL = ExitSignal(())
"""A placeholder: the hits are known already, and methods only pass the message on."""
_Message = tuple[float, int]
"""Bytes of a message, and the rows in its span."""
_StepRows = tuple[int, int]
"""Rows of a sequence in a draft step, and the number of stream tokens among them."""


class SimulatedBatch:
    """Simulates sequences on one machine in lock-step; spans, if any, are written into the first one's trace.

    All `prompts` are decoded to their ends. Further prompts, `others`, fill up the batch to `size` sequences, and the
    places that become free before that.
    """

    def __init__(
        self,
        schedule: Schedule,
        costs: RoundCosts,
        outcomes: Outcomes,
        prompts: Sequence[int],
        *,
        size: int = 1,
        others: Iterable[int] = (),
        has_spans: bool = False,
    ) -> None:
        self.env = Environment()
        self.schedule, self.costs, self.outcomes = schedule, costs, outcomes
        self.overlaps = schedule.traits.overlaps
        self.num_passes = self.num_rows = 0
        self.others, self._num_prompts = iter(others), len(prompts)
        self.num_awaited = len(prompts)  # initial sequences that go on after the current verification
        self.sequences = [
            SequenceInBatch(self, prompt, is_awaited=place < len(prompts))
            for place, prompt in enumerate(islice(chain(prompts, self.others), size))
        ]
        self.spans = WrittenSpans(self.sequences[0].trace, costs) if has_spans else None
        self._asked: dict[LaneCall, None] = {}  # requested calls in order
        self._rows: list[int] = []  # of each sequence in the current round
        self._places: list[int] = []  # likewise
        self._lanes = SimulatedLanes(self)
        self._branches: SimulatedBranches
        self._num_roots = cache(self._roots_of)
        self._later: list[_StepRows] = [(rows, 0) for rows in costs.plan.later_rows]

    def play(self) -> list[Trace]:
        """Decode the prompts and return their traces; a trace also has the rounds of prompts that took the place."""
        self.env.process(self._drive())
        self.env.run()
        if self.spans is not None:
            self.spans.finish()
        return [sequence.trace for sequence in self.sequences[: self._num_prompts]]

    def ask(self, call: LaneCall) -> LaneCall:
        """Request a lane call for one sequence; return the handle to wait on."""
        self._asked[call] = None
        return call

    def _drive(self) -> Generator[Event]:
        """Run all method generators: collect their lane calls, start them, and wait for the one they all wait for."""
        flows = {one: self.schedule.traits.flow(one, self.schedule) for one in self.sequences}
        begun: dict[LaneCall, Begun] = {}
        replies: dict[SequenceInBatch, object] = dict.fromkeys(flows)
        while True:
            call, *others = {_send(flows[one], reply) for one, reply in replies.items()}
            if others:
                name = self.schedule.method
                raise ConfigError(f"{name} makes unlike lane calls in sequences of a batch, which is not simulated")
            if call is None:
                break
            begun |= {asked: started for asked in self._asked if (started := asked())}
            self._asked.clear()
            end, reply_to = begun.pop(call)
            yield end
            replies = {one: reply_to(one) for one in flows}
        if self.overlaps:
            self._branches.stop()  # all sequences have ended

    def verify(self) -> Begun:
        """Verify the windows of all sequences."""
        self._begin_round()
        return self._decide(len(self.costs.plan.segments) - 1)  # the segments of such plans differ only in their rows

    def prefix(self) -> Begun:
        """Run the target's layers up to the exit."""
        self._begin_round()
        return self._lanes.segment(0, is_verdict=False), lambda _: _NO_SIGNAL

    def suffix(self) -> Begun:
        """Run the target's layers after the exit."""
        return self._decide(1)

    def _decide(self, segment: int) -> Begun:
        self.num_awaited -= sum(one.ends_now for one in self.sequences)
        return self._lanes.segment(segment, is_verdict=True), SequenceInBatch.decide

    def first_rollout(self) -> Begun:
        """Draft the first windows."""
        return self._lanes.rollout(is_first=True), SequenceInBatch.window

    def rollout_again(self) -> Begun:
        """Draft the next windows."""
        return self._lanes.rollout(is_first=False), SequenceInBatch.window

    def branch(self) -> None:
        """Start branches for all sequences."""
        self._branches = SimulatedBranches(self._lanes)

    def join(self) -> None:
        """Start the branches of the exit's roots for all sequences."""
        self._branches.join()

    def take(self) -> Begun:
        """Finish the windows of sequences with a hit; if no sequence has one, draft new windows for all."""
        is_any = any(one.source != MISS for one in self.sequences)
        for one in self.sequences:
            one.go_on(has_window=one.source != MISS or not is_any)
        return self._branches.take(), SequenceInBatch.window

    def _begin_round(self) -> None:
        self._rows = [one.num_drafted + 1 for one in self.sequences]
        self._places = [one.place for one in self.sequences]
        self.num_passes += 1
        self.num_rows += sum(self._rows)
        for one in self.sequences:
            one.trace.begin_round(self.env.now)

    def segment(self, segment: int) -> Step:
        """Return the target's operation for a segment in the current round."""
        return self.costs.segment(segment, self._rows, self._places)

    def branch_steps(self) -> Callable[[StepKind], Step]:
        """Return a function from a kind of step to the branch step of the current round, valid after its end too."""
        places, first_rows = self._places, self.first_rows()
        has_window = [one.has_window for one in self.sequences]
        drafted = [one.num_drafted for one in self.sequences]

        def step(kind: StepKind) -> Step:
            if kind == "last_drafted":
                return self.costs.branch(kind, first_rows, places)
            without, with_window = self._num_roots(kind)
            rows = [with_window if has else without for has in has_window]
            if kind == "window_and_roots":
                rows = [roots + num_drafted for roots, num_drafted in zip(rows, drafted, strict=True)]
            return self.costs.branch(kind, rows, places)

        return step

    def _roots_of(self, kind: StepKind) -> tuple[int, int]:
        """Return the number of branches that a kind of step advances, in a round without and with a window."""
        without = with_window = 0
        for kinds, roots in (
            (DRAFT_STEPS, self.outcomes.num_draft_roots),
            (EXIT_STEPS, self.outcomes.num_exit_roots),
        ):
            if kind in kinds:
                without, with_window = without + roots[0], with_window + roots[1]
        return without, with_window

    def verdict_message(self) -> _Message:
        """Return the message with the verdicts of all sequences."""
        verdict_bytes = self.costs.messages.verdict_bytes
        counts = [one.num_accepted for one in self.sequences]
        return sum(verdict_bytes[count] for count in counts), sum(counts) + len(counts)

    def exit_message(self) -> _Message:
        """Return the message with the exit's roots of all sequences."""
        rows = sum(self._rows)
        return rows * self.costs.messages.exit_bytes / self.schedule.num_rows, rows

    def window_message(self) -> _Message:
        """Return the message with the next windows of all sequences."""
        window_bytes = self.costs.messages.window_bytes
        counts = [one.num_drafted for one in self.sequences]
        return sum(window_bytes[count] for count in counts), sum(counts)

    def send(self, path: Path, message: _Message, sent_s: float) -> float:
        """Send a message along a path without other traffic; return when it arrives."""
        num_bytes, rows = message
        if self.spans is None:
            return send_along(path, num_bytes, sent_s)
        return self.spans.send(path, num_bytes, rows, sent_s)

    def rollout(self, *, is_first: bool) -> Steps | None:
        """Return the steps of new windows, for a draft that has not read the last verdicts' tokens; None if none."""
        unread = self.costs.plan.unread
        steps = [self._window_steps(one, 0 if is_first else unread[one.num_accepted]) for one in self.sequences]
        return self._together(Work.ROLLOUT_STEP, steps)

    def next_windows(self, num_done: Mapping[int, int], *, is_read: bool) -> Steps | None:
        """Return the steps that the next windows still need after a mirror round; None if none.

        `num_done`: steps done in branches, by source; `is_read`: the draft has read the last windows.
        """
        if all(one.source == MISS for one in self.sequences):
            steps = [self._window_steps(one, one.num_accepted * self.schedule.exit_features) for one in self.sequences]
            return self._together(Work.ROLLOUT_STEP, steps)
        done = dict(num_done) if is_read else dict.fromkeys(num_done, 0)
        steps = [
            []
            if one.source == MISS
            else self._window_steps(one, 0 if is_read else one.num_accepted)[done[one.source] :]
            for one in self.sequences
        ]
        return self._together(Work.FINISH_STEP, steps)

    def first_rows(self) -> list[int]:
        """Return the rows of each sequence that the draft reads before the branches of the current round begin.

        Without exit features that is each sequence's last token. With them, windows are read only when the exit message
        has arrived, and sequences without a window read the tokens that the previous round committed.
        """
        if not self.schedule.exit_features:
            return [1] * len(self.sequences)
        return [0 if one.has_window else one.num_accepted + 1 for one in self.sequences]

    def _window_steps(self, sequence: SequenceInBatch, num_unread: int) -> list[_StepRows]:
        """Return the steps of a sequence's next window; the first one also reads `num_unread` earlier tokens."""
        first = self.costs.plan.first_rows[num_unread], 0
        if not self.outcomes.guessed_rows:
            return [first, *self._later]
        return [first, *((rows, rows - 1) for rows in self.outcomes.guessed_rows[sequence.at] if rows)]

    def _together(self, work: Work, steps: Sequence[Sequence[_StepRows]]) -> Steps | None:
        """Combine the i-th steps of all sequences into one step each; return None if there are no steps."""
        combined: list[Step] = []
        places = [one.place for one in self.sequences]
        for rows_of_step, equal_steps in groupby(zip_longest(*steps, fillvalue=(0, 0))):
            rows, stream_rows = zip(*rows_of_step, strict=True)
            combined += [self.costs.step(rows, stream_rows, places)] * len(list(equal_steps))
        if not combined:
            return None
        if start_s := self.costs.first_step_s:
            combined[0] = combined[0]._replace(seconds=one_in_ticks(combined[0].seconds + start_s))
        return Steps(work, combined)


def _send(flow: MethodFlow, reply: object) -> Any:
    """Send a method generator its reply; return the lane call that it waits for next, None when it has ended."""
    try:
        return flow.send(reply)
    except StopIteration:
        return None
