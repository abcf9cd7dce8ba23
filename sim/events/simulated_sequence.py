"""One sequence of the event world: where it is, what the models answer there, and what is written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from simpy import Environment

from costs.durations import Durations
from costs.paces import pace_of
from costs.round_plan import DRAFT_STEP, DRAFT_STREAMS, StepKind
from decoding.messages import Verdict, Window
from decoding.schedule import Schedule
from decoding.sequence import DecodedSequence
from decoding.trace import Span, Trace, Work
from sim.acceptance.acceptance_model import MISS, NO_TOKEN, Answers
from sim.machine.link import Path, arrival_s
from sim.machine.shared_memory import Run

GuessRows = Callable[[int], tuple[int, ...]]
"""`Guessing.rows` of one prompt: rows of the steps after a window's first one, by its position."""

ROLLOUT_STEP, FINISH_STEP = Work.ROLLOUT_STEP, Work.FINISH_STEP  # a member is slow to look up in its class


class RoundCosts:
    """`Durations` as lists over contexts and paces (last), faster to read singly than arrays."""

    def __init__(self, durations: Durations) -> None:
        self.plan = durations.plan
        self._first_context, self.num_paces = durations.first_context, durations.num_paces
        self._num_contexts = len(durations.segments_s[0]) // durations.num_paces
        self.segments_s: list[list[float]] = [segment.tolist() for segment in durations.segments_s]
        self.step_s: dict[int | str, list[float]] = {kind: step.tolist() for kind, step in durations.step_s.items()}
        self.catch_up_s: list[list[float]] = durations.catch_up_s.tolist()
        self.later_s: list[list[float]] = [step.tolist() for step in durations.later_s]
        self.rollout_s: list[list[float]] = durations.rollout_s.tolist()
        self.guessing_s: list[list[float]] = durations.guessing_s.tolist()
        contexts = durations.segments_s[0].shape
        self.slowdowns: dict[int | str, dict[int | str, list[list[float]]]] = {
            segment: {
                kind: [np.broadcast_to(times, contexts).tolist() for times in slow] for kind, slow in slowdowns.items()
            }
            for segment, slowdowns in enumerate(durations.slowdowns)
        }
        self.target_half_s = durations.target_half_s
        self.draft_half_s = durations.draft_half_s
        self.round_overhead_s = durations.round_overhead_s
        self.messages = durations.messages
        self.collectives = durations.collectives

    def place(self, context: int, prompt: int, number: int) -> int:
        """Of a round of a prompt's text, by their numbers, in a context: index in the lists."""
        pace = pace_of(prompt, number, self.num_paces)
        return context - self._first_context + pace * self._num_contexts


class Steps(NamedTuple):
    """Draft steps in a row, the first of which may have tokens to catch up with; `kind` sets what slows them.

    `steps_s` and `rows` are of each, for traces with spans only; `guesses` those of a draft's streams among the rows,
    empty where no step has any.
    """

    kind: StepKind
    work: Work
    seconds: float
    steps_s: tuple[float, ...] = ()
    rows: tuple[int, ...] = ()
    guesses: tuple[int, ...] = ()

    @classmethod
    def equal(cls, kind: StepKind, work: Work, num_steps: int, step_s: float, rows: int) -> Steps:
        """Steps that are all alike."""
        return cls(kind, work, num_steps * step_s, (step_s,) * num_steps, (rows,) * num_steps)


Message = tuple[float, int]
"""What crosses between lanes: its bytes, and the rows that its span tells."""


class SimulatedSequence:
    """A sequence under one schedule; its lanes share it.

    `place` is the index of the round's context and pace in the lists of `costs`; `reads_first` whether the draft reads
    the window's last token before the branches of a round begin.
    """

    __slots__ = (
        "_context", "_guesses", "_last_branch", "_next_branch", "_prompt", "_rounds", "_sequence", "costs", "env",
        "has_spans", "place", "reads_first", "schedule", "trace", "unfinished", "verdict", "window",
    )  # fmt: skip

    def __init__(
        self,
        env: Environment,
        schedule: Schedule,
        costs: RoundCosts,
        answers: Answers,
        *,
        prompt: int = 0,
        guesses: GuessRows | None,
        has_spans: bool,
    ) -> None:
        self.env = env
        self.schedule = schedule
        self.costs = costs
        self.has_spans = has_spans
        self.reads_first = not schedule.exit_features
        self.trace = Trace(world="simulated")
        self.unfinished = True
        self._context, self._prompt = answers.prompt_length - 1, prompt
        self.place = costs.place(self._context, prompt, 0)
        self._rounds = iter(answers.rounds)
        self.window, self.verdict, self._next_branch = next(self._rounds)
        self._guesses = guesses
        self._last_branch = MISS
        tokens = (NO_TOKEN,) * answers.prompt_length
        self._sequence = DecodedSequence(tokens, max_new_tokens=answers.num_tokens, eos_token_ids=())

    def begin_round(self) -> None:
        """A window is handed to the target now."""
        self.trace.begin_round(self.env.now)

    def segment_of(self, window: Window) -> int:
        """Which of the plan's segments verifies a window."""
        return self.costs.plan.widths.index(len(window.tokens))

    def segment_s(self, segment: int) -> float:
        """Seconds of an operation of the target in the round under way."""
        return self.costs.segments_s[segment][self.place]

    def branch_step_s(self) -> Callable[[StepKind], float]:
        """Seconds of a step of each kind of branches that start now, also when the round has ended."""
        step_s, place = self.costs.step_s, self.place
        return lambda kind: step_s[kind][place]

    def slowdown(self, segment: int | str, kind: int | str) -> tuple[float, float]:
        """How many times as long an operation of the target and a step of the draft take at once."""
        target, draft = self.costs.slowdowns[segment][kind]
        return target[self.place], draft[self.place]

    def verdict_message(self, verdict: Verdict) -> Message:
        """A verdict on its way to the draft."""
        return self.costs.messages.verdict_bytes[verdict.num_accepted], verdict.num_accepted + 1

    def exit_message(self) -> Message:
        """An exit's signal on its way to the draft."""
        return self.costs.messages.exit_bytes, self.costs.plan.segments[0].rows

    def window_message(self) -> Message:
        """The next window on its way to the target."""
        num_drafted = len(self.window.tokens)
        return self.costs.messages.window_bytes[num_drafted], num_drafted

    def commit(self, window: Window, verdict: Verdict) -> None:
        """End the round and go on to the next."""
        sequence, trace, now_s = self._sequence, self.trace, self.env.now
        num_committed = len(sequence.commit(window, verdict))
        trace.end_round(now_s, window, verdict, num_committed)
        self._last_branch = self._next_branch
        if sequence.unfinished:
            self._context += num_committed
            if self.costs.num_paces == 1:  # which is far more often, and quicker
                self.place += num_committed
            else:
                self.place = self.costs.place(self._context, self._prompt, len(trace.rounds))
            self.window, self.verdict, self._next_branch = next(self._rounds)
        else:
            self.unfinished = False
            trace.decode_s = now_s

    def finish(self) -> Trace:
        """The whole trace; what would start after the last commit is no part of it."""
        trace = self.trace
        trace.spans[:] = [span for span in trace.spans if span.start_s < trace.decode_s]
        return trace

    def rollout(self, verdict: Verdict | None) -> Steps | None:
        """The steps of a whole window, for a draft that has not read what the last `verdict` brought."""
        return self._rollout(ROLLOUT_STEP, 0 if verdict is None else self.costs.plan.unread[verdict.num_accepted])

    def next_window(self, verdict: Verdict, left: Mapping[int, int], *, is_read: bool) -> Steps | None:
        """What is left to do for the window after `verdict`, None if nothing; `left` are branches' steps by source."""
        branch = self._last_branch
        hit = branch != MISS
        self.trace.mark_hit(hit=hit)
        if not hit:
            return self._rollout(ROLLOUT_STEP, verdict.num_accepted if self.schedule.exit_features else 0)
        if not is_read:
            return self._rollout(FINISH_STEP, verdict.num_accepted)
        num_steps = left[branch]
        if self._guesses is not None:
            return self._guessed(FINISH_STEP, self.costs.plan.branch_steps - num_steps)
        if not num_steps:
            return None
        return Steps.equal("one_row", FINISH_STEP, num_steps, self.costs.step_s["one_row"][self.place], 1)

    def send(self, path: Path, message: Message, sent_s: float) -> float:
        """When a message arrives that is sent then, on a path on which no other comes in between."""
        num_bytes, rows = message
        if not self.has_spans:
            return arrival_s(path, num_bytes, sent_s)
        for link in path:
            start_s, sent_s = max(sent_s, link.free_s), link.arrival_s(num_bytes, sent_s)
            self.write(link.name, Work.TRANSFER, start_s, sent_s, rows)
        return sent_s

    def write(self, lane: str, work: Work, start_s: float, end_s: float, rows: int) -> None:
        """Write a span to the trace. It belongs to the round whose commit is the next one after its start."""
        trace = self.trace
        round_index = len(trace.rounds)
        while round_index and trace.rounds[round_index - 1].end_s > start_s:
            round_index -= 1
        trace.spans.append(Span(lane, work, start_s, end_s, round_index, rows))

    def write_segment(self, segment: int, run: Run) -> None:
        """Write an operation of the target to the trace, at its own end."""
        operation, lane = self.costs.plan.segments[segment], self.schedule.target_lane
        start_s, end_s = run.times_s([run.work_s])
        self.write(lane, operation.work, start_s, end_s, operation.rows)
        self._write_collectives(
            lane, run, 0.0, run.work_s, self.costs.collectives.of_segment_s(segment), operation.rows
        )

    def write_steps(self, steps: Steps, run: Run) -> None:
        """Write a run of the draft's steps to the trace, at its own end."""
        lane, done_s = self.schedule.draft_lane or "", 0.0
        times_s, guesses = run.times_s(steps.steps_s), steps.guesses or (0,) * len(steps.rows)
        each = zip(pairwise(times_s), steps.steps_s, steps.rows, guesses, strict=True)
        for (start_s, end_s), step_s, rows, num_guesses in each:
            self.write(lane, steps.work, start_s, end_s, rows)
            collectives_s = self._collectives_of_step_s(steps.kind, rows, num_guesses)
            self._write_collectives(lane, run, done_s, step_s, collectives_s, rows)
            done_s += step_s

    def _collectives_of_step_s(self, kind: StepKind, rows: int, num_guesses: int) -> tuple[float, ...]:
        """How long each collective takes; of a step of one window that verifies guesses, those of the streams too."""
        collectives = self.costs.collectives
        if not num_guesses or collectives.of_draft is None:
            return collectives.of_step_s(kind, rows)
        calls = (DRAFT_STEP, rows), (DRAFT_STREAMS, num_guesses)
        return tuple(chain(*(collectives.of_draft.collectives_s(*call) for call in calls)))

    def _write_collectives(
        self, lane: str, run: Run, done_s: float, work_s: float, collectives_s: Sequence[float], rows: int
    ) -> None:
        """Write what the devices of a lane exchange within some work, which it divides into equal parts."""
        if not collectives_s:
            return
        computed_s = (work_s - sum(collectives_s)) / len(collectives_s)
        pieces_s = [done_s, *chain(*((computed_s, seconds) for seconds in collectives_s))]
        times_s = run.times_s(pieces_s)[2:]
        for start_s, end_s in zip(times_s[::2], times_s[1::2], strict=True):
            if end_s > start_s:
                self.write(f"{lane}->{lane}", Work.TRANSFER, start_s, end_s, rows)

    def _rollout(self, work: Work, num_unread: int) -> Steps | None:
        """A whole window, after so many tokens to read before the last committed one."""
        if self._guesses is not None:
            return self._guessed(work, 0, num_unread)
        costs, place = self.costs, self.place
        seconds = costs.rollout_s[num_unread][place]
        if not self.has_spans:
            return Steps("one_row", work, seconds)
        steps_s = (costs.catch_up_s[num_unread][place], *(step_s[place] for step_s in costs.later_s))
        rows = (costs.plan.first_rows[num_unread], *costs.plan.later_rows)
        return Steps("one_row", work, seconds, steps_s, rows)

    def _guessed(self, work: Work, num_done: int, num_unread: int | None = None) -> Steps | None:
        """The steps of a window after so many: the first one of all has no guesses. None if there are no others.

        A rollout has tokens `num_unread` in it before the last one. That of a branch has one row, and finds the draft
        at work.
        """
        assert self._guesses is not None, "a draft without streams guesses nothing"
        place, seconds = self.place, self.costs.guessing_s
        rows = self._guesses(len(self._sequence.tokens))[max(0, num_done - 1) :]
        steps_s, guesses = [seconds[count - 1][place] for count in rows], tuple(count - 1 for count in rows)
        if not num_done:
            more = num_unread or 0
            first_s = seconds[0] if num_unread is None else self.costs.catch_up_s[more]
            rows, steps_s = (more + 1, *rows), [first_s[place], *steps_s]
            guesses = 0, *guesses
        return Steps("one_row", work, sum(steps_s), tuple(steps_s), rows, guesses) if rows else None
