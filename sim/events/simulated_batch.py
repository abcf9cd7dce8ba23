"""Several sequences of the event world: each has its own generator, and they go through their rounds together.

The rule of a batch is lock-step. A verb begins when every sequence that goes on has asked for it, and is one call whose
rows are those of all, each at its own context; one message carries what crosses for all, and all have their replies at
once. A sequence that has ended asks for nothing any more.

After a round of mirror speculation the draft finishes the windows of the sequences that have a branch for their
outcome. The others do not keep them waiting: they verify their next token alone, a single row, while the draft prepares
for what follows it. Where nobody has a branch the draft drafts afresh for all, as it does for one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import zip_longest
from typing import Any

from simpy import Environment, Event

from costs.round_plan import DRAFT_STEPS, EXIT_STEPS, StepKind
from costs.ticks import one_in_ticks
from decoding.messages import Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Work
from sim.acceptance.acceptance_model import MISS, NO_TOKEN
from sim.events.batch_costs import BatchCosts
from sim.events.event_lanes import NO_SIGNAL, SimulatedBranches, SimulatedDraftLane, SimulatedTargetLane
from sim.events.sequence_in_batch import ANY_WINDOW, BatchOutcomes, SequenceInBatch
from sim.events.simulated_sequence import FINISH_STEP, ROLLOUT_STEP, Message, Steps
from sim.machine.link import Path, arrival_s
from sim.machine.shared_memory import Run
from sim.machine.simulated_machine import SimulatedMachine

Begun = tuple[Event, Sequence[Any]]
"""The end of what all have asked for, and what every sequence is replied then."""
_VERDICT = Verdict(0, NO_TOKEN)
"""Stands for the verdicts of all sequences, which know their own."""
_StepRows = tuple[int, int]
"""Rows of a sequence in a draft step, and the stream tokens among them."""


class SimulatedBatch:
    """Some sequences on one machine, in lock-step. Lanes decode them as they do a `SimulatedSequence`."""

    has_spans = False
    verdict, window = _VERDICT, ANY_WINDOW

    def __init__(self, schedule: Schedule, costs: BatchCosts, outcomes: BatchOutcomes, prompts: Sequence[int]) -> None:
        self.env = Environment()
        self.schedule, self.costs, self.outcomes = schedule, costs, outcomes
        self.num_passes = self.num_rows = 0
        self.sequences = [SequenceInBatch(self, prompt) for prompt in prompts]
        self._num_going = len(self.sequences)
        self._asked: dict[Callable[[], Begun | None], list[tuple[SequenceInBatch, Event]]] = {}
        self._asking: list[SequenceInBatch] = []  # for the verb that begins
        self._rows: list[int] = []  # of the round under way, as are the others
        self._places: list[int] = []
        self._alone_s: dict[int, float] = {}
        self._step_s: Callable[[StepKind], float]
        machine = SimulatedMachine(self)
        self._target, self._draft = SimulatedTargetLane(self, machine), SimulatedDraftLane(self, machine)
        self._branches: SimulatedBranches

    def play(self) -> float:
        """Decode all sequences; when the last one ends."""
        for sequence in self.sequences:
            self.env.process(self.schedule.traits.flow(sequence, self.schedule))  # type: ignore[arg-type]
        self.env.run()
        return max(sequence.end_s for sequence in self.sequences)

    def ask(self, sequence: SequenceInBatch, verb: Callable[[], Begun | None]) -> Event:
        """A sequence asks for a verb; its own reply."""
        reply = self.env.event()
        self._asked.setdefault(verb, []).append((sequence, reply))
        self._begin_if_all_ask(verb)
        return reply

    def end_one(self) -> None:
        """A sequence has ended: nobody waits for it any more."""
        self._num_going -= 1
        if not self._num_going:
            self._draft.finish()
            return
        for verb in tuple(self._asked):
            self._begin_if_all_ask(verb)

    def _begin_if_all_ask(self, verb: Callable[[], Begun | None]) -> None:
        if len(self._asked[verb]) < self._num_going:
            return
        asked = self._asked.pop(verb)
        self._asking = [sequence for sequence, _ in asked]
        if begun := verb():
            end, values = begun
            assert end.callbacks is not None, "it has ended already"
            replies = [reply for _, reply in asked]
            end.callbacks.append(partial(_reply_all, replies, values))

    def verify(self) -> Begun:
        """Verify the windows of all."""
        return self._target.verify(ANY_WINDOW), [one.decide() for one in self._asking]

    def prefix(self) -> Begun:
        """Begin to verify, up to the exit."""
        return self._target.prefix(ANY_WINDOW, 0), [NO_SIGNAL] * len(self._asking)

    def suffix(self) -> Begun:
        """Go on behind it."""
        return self._target.suffix(), [one.decide() for one in self._asking]

    def first_rollout(self) -> Begun:
        """Draft the first windows."""
        return self._draft.rollout(), [ANY_WINDOW] * len(self._asking)

    def rollout_again(self) -> Begun:
        """Draft the next windows."""
        return self._draft.rollout(_VERDICT), [ANY_WINDOW] * len(self._asking)

    def branch(self) -> None:
        """Prepare for the outcomes of all."""
        self._branches = self._draft.branch(ANY_WINDOW)

    def join(self) -> None:
        """Go on with the exit's roots of all."""
        self._branches.join(NO_SIGNAL)

    def take(self) -> Begun:
        """Finish the windows of those that have a branch; where nobody has one, all get a fresh window."""
        is_any = any(one.source != MISS for one in self._asking)
        windows = [one.take_window(is_there=one.source != MISS or not is_any) for one in self._asking]
        return self._branches.take(_VERDICT), windows

    @property
    def reads_first(self) -> bool:
        """Whether the draft reads something before the branches of the round under way begin."""
        return any(self._first_rows())

    def begin_round(self) -> None:
        """The windows are handed to the target now."""
        self._rows = [one.num_drafted + 1 for one in self._asking]
        self._places = [one.place for one in self._asking]
        self._alone_s = {}
        self.num_passes += 1
        self.num_rows += sum(self._rows)

    def segment_of(self, window: Window) -> int:  # noqa: ARG002
        """Which of the plan's segments verifies windows; of several they differ in their rows only."""
        return len(self.costs.plan.segments) - 1

    def segment_s(self, segment: int) -> float:
        """Seconds of an operation of the target in the round under way."""
        alone_s = self._alone_s[segment] = self.costs.segment_s(segment, self._rows, self._places)
        return alone_s + self.costs.pass_more_s(segment)

    def branch_step_s(self) -> Callable[[StepKind], float]:
        """Seconds of a step of each kind of branches that start now, also when the round has ended."""
        outcomes, places = self.outcomes, self._places
        has_window = [one.has_window for one in self._asking]
        drafted = [one.num_drafted for one in self._asking]
        first_rows = self._first_rows()

        @cache
        def step_s(kind: StepKind) -> float:
            if kind == "last_drafted":
                rows = first_rows
            else:
                counts = [0, 0]
                for source, kinds in (outcomes.num_draft_roots, DRAFT_STEPS), (outcomes.num_exit_roots, EXIT_STEPS):
                    if kind in kinds:
                        counts = [count + more for count, more in zip(counts, source, strict=True)]
                rows = [counts[is_there] for is_there in has_window]
            if kind == "window_and_roots":
                rows = [count + more for count, more in zip(rows, drafted, strict=True)]
            return self.costs.branch_s(kind, rows, places)

        self._step_s = step_s
        return step_s

    def slowdown(self, segment: int | str, kind: int | str) -> tuple[float, float]:
        """How many times as long an operation of the target and a step of the draft take at once."""
        return self.costs.slowdown(segment, kind, self._alone_s[segment], self._step_s(kind))  # type: ignore

    def verdict_message(self, verdict: Verdict) -> Message:  # noqa: ARG002
        """All verdicts on their way to the draft."""
        verdict_bytes = self.costs.messages.verdict_bytes
        return sum(verdict_bytes[one.num_accepted] for one in self._asking), 0

    def exit_message(self) -> Message:
        """The exit's signals on their way to the draft."""
        return sum(self._rows) * self.costs.messages.exit_bytes / self.schedule.num_rows, 0

    def window_message(self) -> Message:
        """The next windows on their way to the target."""
        window_bytes = self.costs.messages.window_bytes
        return sum(window_bytes[one.num_drafted] for one in self._asking), 0

    def send(self, path: Path, message: Message, sent_s: float) -> float:
        """When a message arrives that is sent then."""
        return arrival_s(path, message[0], sent_s)

    def rollout(self, verdict: Verdict | None) -> Steps | None:
        """The steps of windows, for a draft that has not read what the last verdicts brought."""
        unread = self.costs.plan.unread
        steps = [self._window_steps(one, 0 if verdict is None else unread[one.num_accepted]) for one in self._asking]
        return self._together(ROLLOUT_STEP, steps, self.costs.rollout_start_s)

    def next_window(self, verdict: Verdict, left: Mapping[int, int], *, is_read: bool) -> Steps | None:  # noqa: ARG002
        """What is left to do for the windows after the committed verdicts, see `SimulatedSequence.next_window`."""
        costs, has_features = self.costs, self.schedule.exit_features
        if all(one.source == MISS for one in self._asking):
            steps = [self._window_steps(one, one.num_accepted * has_features) for one in self._asking]
            return self._together(ROLLOUT_STEP, steps, costs.rollout_start_s)
        if not is_read:
            steps = [[] if one.source == MISS else self._window_steps(one, one.num_accepted) for one in self._asking]
            return self._together(FINISH_STEP, steps, costs.rollout_start_s)
        num_done = {source: costs.plan.branch_steps - steps for source, steps in left.items()}
        steps = [
            [] if one.source == MISS else self._window_steps(one, 0)[num_done[one.source] :] for one in self._asking
        ]
        return self._together(FINISH_STEP, steps)

    def write_segment(self, segment: int, run: Run) -> None:
        """Batches write no spans."""

    def write_steps(self, steps: Steps, run: Run) -> None:
        """Batches write no spans."""

    def _first_rows(self) -> list[int]:
        """Rows that the draft reads before the branches of the round begin.

        That is the last token of every sequence; with the exit's features those with a window are read with its message
        only, and the others read what the round before committed.
        """
        if not self.schedule.exit_features:
            return [1] * len(self._asking)
        return [0 if one.has_window else one.num_accepted + 1 for one in self._asking]

    def _window_steps(self, sequence: SequenceInBatch, num_unread: int) -> list[_StepRows]:
        """The steps of a sequence's next window, after so many tokens to read before the last committed one."""
        plan, guessing = self.costs.plan, self.outcomes.guessing
        first = plan.first_rows[num_unread], 0
        if guessing is None:
            return [first, *((rows, 0) for rows in plan.later_rows)]
        return [first, *((rows, rows - 1) for rows in guessing.rows(sequence.prompt, sequence.position))]

    def _together(self, work: Work, steps: Sequence[Sequence[_StepRows]], first_more_s: float = 0.0) -> Steps | None:
        """Every sequence's own steps, the next ones of all at once; None without any."""
        places = [one.place for one in self._asking]
        seconds = 0.0
        for together in zip_longest(*steps, fillvalue=(0, 0)):
            rows, stream_rows = zip(*together, strict=True)
            seconds += self.costs.step_s(rows, stream_rows, places)
        return Steps("one_row", work, one_in_ticks(seconds + first_more_s)) if seconds else None


def _reply_all(replies: Sequence[Event], values: Sequence[Any], _: Event) -> None:
    """What all have asked for has ended: every sequence has its own reply."""
    for reply, value in zip(replies, values, strict=True):
        reply.succeed(value)
