"""The operations of a drafter in its lane.

Times are measured in the lane. A reply has its steps since the last reply as (work, start, end, rows).
"""

import time
from collections.abc import Sequence

from decoding.messages import ExitSignal, Window
from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.arrays import Array
from runtime.drafters.language_model.branch_set import BranchSet
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.window_drafter import Steps, WindowDrafter
from runtime.wire.channel import Block
from runtime.wire.operations import Drafted, SequenceStart, Spans, operation


class DraftRole:
    """Operations of a drafter, and the steps of branches between messages."""

    def __init__(self, drafter: WindowDrafter) -> None:
        self._drafter = drafter
        self._branches: BranchSet | None = None
        self._spans: list[tuple[str, float, float, int]] = []

    @property
    def has_work(self) -> bool:
        """Whether branches can make a step before the next message arrives."""
        return self._branches is not None and self._branches.has_work

    def step(self) -> None:
        """Advance the branches by one step."""
        assert self._branches is not None, "a step without branches"
        start_s = time.perf_counter()
        num_rows = self._branches.step()
        self._spans.append((Work.BRANCH_STEP, start_s, time.perf_counter(), num_rows))

    def forget(self) -> None:
        """Stop preparing branches."""
        self._branches = None

    @operation
    def prepare(self, start: SequenceStart) -> None:
        """Compile what the sequence needs, if the device compiles."""
        num_prompt = len(start.prompt)
        self._drafter.prepare(start.schedule, num_prompt=num_prompt, capacity=num_prompt + start.max_new_tokens)

    @operation
    def prefill(self, start: SequenceStart, features: Block | None) -> None:
        """Read a prompt, with the target's features of it if the schedule has them."""
        self._schedule: Schedule = start.schedule
        self._branches, self._spans = None, []
        self._drafter.prefill(
            start.prompt,
            schedule=start.schedule,
            capacity=len(start.prompt) + start.max_new_tokens,
            sampling=start.sampling,
            features_TE=self._array(features),
        )

    @operation
    def rollout(self, committed: Sequence[int], features: Block | None) -> Drafted:
        """Draft a window after the tokens committed since the last one, with the target's features of them."""
        return self._drafted(Work.ROLLOUT_STEP, self._drafter.rollout(committed, self._array(features)))

    @operation
    def branch(self) -> None:
        """Start branches for the outcomes of the window last drafted, with a first step if it needs no exit message."""
        assert isinstance(self._drafter, Drafter), "branches of a drafter that is not a language model"
        self._branches = BranchSet(self._drafter, self._schedule)
        if self.has_work:
            self.step()

    @operation
    def join(self, signal: ExitSignal) -> None:
        """Add the exit's roots to the branches."""
        assert self._branches is not None, "an exit message without branches"
        self._branches.join(signal._replace(features=self._array(signal.features)))

    @operation
    def take(self, num_accepted: int, next_token: int) -> Drafted:
        """Finish the branch of an outcome, or without one a new rollout; the reply is the next window."""
        assert self._branches is not None, "nothing to take"
        hit, steps = self._branches.take((num_accepted, next_token))
        self._branches = None
        return self._drafted(Work.FINISH_STEP if hit else Work.ROLLOUT_STEP, steps, hit=hit)

    @operation
    def drop(self) -> Spans:
        """Drop the branches at the end of the sequence; the reply has the steps since the last reply."""
        self.forget()
        return self._take_spans()

    def _array(self, features: Block | None) -> Array | None:
        return None if features is None else self._drafter.array(features)

    def _drafted(self, work: Work, steps: Steps, *, hit: bool | None = None) -> Drafted:
        while True:
            start_s = time.perf_counter()
            try:
                num_rows = next(steps)
            except StopIteration as end:
                window: Window = end.value
                return Drafted(window=window, spans=self._take_spans(), hit=hit)
            self._spans.append((work, start_s, time.perf_counter(), num_rows))

    def _take_spans(self) -> Spans:
        spans, self._spans = self._spans, []
        return spans
