"""Several sequences of the event world: each has its own generator, and they go through their rounds together.

A lane call begins when every sequence has made it, and is one operation with the rows of all, each at its own context;
one message carries what crosses for all. A sequence that has ended leaves its place to another one, as in engines that
batch continuously, until all have ended that were there at first. After a mirror round the draft finishes the windows
of sequences that have a branch; the others verify a single row meanwhile. Where nobody has a branch it drafts afresh
for all.
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
"""When an operation that all have asked for ends, and the function that gives each sequence its reply."""
LaneCall = Callable[[], Begun | None]
"""An operation that begins when all sequences have asked for it; it returns None if nobody waits for a reply."""
_NO_SIGNAL = ExitSignal(())
"""Placeholder: what the exit names is known already, and a method only passes the message on."""
_Message = tuple[float, int]
"""A message between lanes: its bytes, and the rows that its span tells."""
_StepRows = tuple[int, int]
"""Rows of a sequence in a draft step, and the stream tokens among them."""


class SimulatedBatch:
    """Some sequences on one machine, in lock-step; `spans` are written into the trace of the first one, if at all.

    `prompts` are decoded whole. `others` fill up `size` places, and those that become free while one of these goes on.
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
        self.num_awaited = len(prompts)  # those that go on after the verification under way
        self.sequences = [
            SequenceInBatch(self, prompt, is_awaited=place < len(prompts))
            for place, prompt in enumerate(islice(chain(prompts, self.others), size))
        ]
        self.spans = WrittenSpans(self.sequences[0].trace, costs) if has_spans else None
        self._asked: dict[LaneCall, None] = {}  # in this order
        self._rows: list[int] = []  # of the round under way, as are the places
        self._places: list[int] = []
        self._lanes = SimulatedLanes(self)
        self._branches: SimulatedBranches
        self._num_roots = cache(self._roots_of)
        self._later: list[_StepRows] = [(rows, 0) for rows in costs.plan.later_rows]

    def play(self) -> list[Trace]:
        """Decode the prompts and return their traces; that of a place goes on with the rounds of others."""
        self.env.process(self._drive())
        self.env.run()
        if self.spans is not None:
            self.spans.finish()
        return [sequence.trace for sequence in self.sequences[: self._num_prompts]]

    def ask(self, call: LaneCall) -> LaneCall:
        """Make a lane call for a sequence; return the handle by which it waits."""
        self._asked[call] = None
        return call

    def _drive(self) -> Generator[Event]:
        """Run all methods: collect their lane calls, begin these, and wait for the one that all wait for."""
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
            self._branches.stop()  # after the step under way: all sequences have ended

    def verify(self) -> Begun:
        """Verify the windows of all."""
        self._begin_round()
        return self._decide(len(self.costs.plan.segments) - 1)  # of several they differ in their rows only

    def prefix(self) -> Begun:
        """Begin to verify, up to the exit."""
        self._begin_round()
        return self._lanes.segment(0, is_verdict=False), lambda _: _NO_SIGNAL

    def suffix(self) -> Begun:
        """Go on after the exit."""
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
        """Prepare for the outcomes of all."""
        self._branches = SimulatedBranches(self._lanes)

    def join(self) -> None:
        """Go on with the exit's roots of all."""
        self._branches.join()

    def take(self) -> Begun:
        """Finish the windows of those that have a branch; where nobody has one, all get a fresh window."""
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
        """Return an operation of the target in the round under way."""
        return self.costs.segment(segment, self._rows, self._places)

    def branch_steps(self) -> Callable[[StepKind], Step]:
        """Return a step of each kind of branches that start now, also when the round has ended."""
        places, first_rows = self._places, self.first_rows()
        has_window = [one.has_window for one in self.sequences]
        drafted = [one.num_drafted for one in self.sequences]

        def step(kind: StepKind) -> Step:
            rows = first_rows if kind == "last_drafted" else list(map(self._num_roots(kind).__getitem__, has_window))
            if kind == "window_and_roots":
                rows = [count + more for count, more in zip(rows, drafted, strict=True)]
            return self.costs.branch(kind, rows, places)

        return step

    def _roots_of(self, kind: StepKind) -> tuple[int, int]:
        """Return the branches that a kind of step takes further, in a round without a window and with one."""
        outcomes = self.outcomes
        sources = [outcomes.num_draft_roots] * (kind in DRAFT_STEPS) + [outcomes.num_exit_roots] * (kind in EXIT_STEPS)
        without, with_window = map(sum, zip(*sources, strict=True))
        return without, with_window

    def verdict_message(self) -> _Message:
        """Return all verdicts on their way to the draft."""
        verdict_bytes = self.costs.messages.verdict_bytes
        counts = [one.num_accepted for one in self.sequences]
        return sum(verdict_bytes[count] for count in counts), sum(counts) + len(counts)

    def exit_message(self) -> _Message:
        """Return the exit's signals on their way to the draft."""
        rows = sum(self._rows)
        return rows * self.costs.messages.exit_bytes / self.schedule.num_rows, rows

    def window_message(self) -> _Message:
        """Return the next windows on their way to the target."""
        window_bytes = self.costs.messages.window_bytes
        counts = [one.num_drafted for one in self.sequences]
        return sum(window_bytes[count] for count in counts), sum(counts)

    def send(self, path: Path, message: _Message, sent_s: float) -> float:
        """Send a message and return when it arrives, on a path without other traffic."""
        num_bytes, rows = message
        if self.spans is None:
            return send_along(path, num_bytes, sent_s)
        return self.spans.send(path, num_bytes, rows, sent_s)

    def rollout(self, *, is_first: bool) -> Steps | None:
        """Return the steps of windows, for a draft that has not read the tokens of the last verdicts."""
        unread = self.costs.plan.unread
        steps = [self._window_steps(one, 0 if is_first else unread[one.num_accepted]) for one in self.sequences]
        return self._together(Work.ROLLOUT_STEP, steps)

    def next_windows(self, num_done: Mapping[int, int], *, is_read: bool) -> Steps | None:
        """Return the steps that the windows after the committed verdicts still need, None if none.

        `num_done` is the steps done in branches, by source; `is_read` whether the draft has read the last windows.
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
        """Return the rows that the draft reads before the branches of the round under way begin.

        That is the last token of every sequence; with the exit's features those with a window are read with its message
        only, and the others read what the round before committed.
        """
        if not self.schedule.exit_features:
            return [1] * len(self.sequences)
        return [0 if one.has_window else one.num_accepted + 1 for one in self.sequences]

    def _window_steps(self, sequence: SequenceInBatch, num_unread: int) -> list[_StepRows]:
        """Return the steps of a sequence's next window, with `num_unread` tokens before the last committed one."""
        first = self.costs.plan.first_rows[num_unread], 0
        if not self.outcomes.guessed_rows:
            return [first, *self._later]
        return [first, *((rows, rows - 1) for rows in self.outcomes.guessed_rows[sequence.at] if rows)]

    def _together(self, work: Work, steps: Sequence[Sequence[_StepRows]]) -> Steps | None:
        """Return the steps of all sequences, each together with the same step of the others; None without any."""
        found: list[Step] = []
        places = [one.place for one in self.sequences]
        for together, alike in groupby(zip_longest(*steps, fillvalue=(0, 0))):
            rows, stream_rows = zip(*together, strict=True)
            found += [self.costs.step(rows, stream_rows, places)] * len(list(alike))
        if not found:
            return None
        if start_s := self.costs.first_step_s:
            found[0] = found[0]._replace(seconds=one_in_ticks(found[0].seconds + start_s))
        return Steps(work, found)


def _send(flow: MethodFlow, reply: object) -> Any:
    """Send a method its reply and return the lane call that it waits for next; None when it has ended."""
    try:
        return flow.send(reply)
    except StopIteration:
        return None
