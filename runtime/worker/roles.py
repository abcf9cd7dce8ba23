"""What a lane does with its models: a handler for each operation of the target and of the draft.

Times are read here, in the lane; draft steps are spans of [work, start, end, rows] in the reply that ends them.
"""

from __future__ import annotations

import time
from typing import TypeVar

import runtime.wire.operations as ops
from decoding.messages import ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.arrays import Array
from runtime.drafters.language_model.branch_set import BranchSet
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.window_drafter import Steps, WindowDrafter
from runtime.target.target_model import TargetModel
from runtime.verification.rules import Sampling
from runtime.wire.channel import Block, to_block

F = TypeVar("F", ExitSignal, Verdict)


def target_handlers(model: TargetModel) -> tuple[ops.Handler, ...]:
    """Return what handles each operation of the target."""

    def prepare(operation: ops.PrepareTarget) -> None:
        start, schedule = operation.start, operation.start.schedule
        model.prepare(
            num_prompt=len(start.prompt),
            num_slots=_capacity(start),
            rows=(schedule.num_rows,),
            feature_layers=operation.feature_layers,
            exit_layer=schedule.exit_layer,
        )

    def prefill(operation: ops.PrefillTarget) -> Block | None:
        start, schedule = operation.start, operation.start.schedule
        model.set_tree(size=schedule.tree_size, depth=schedule.num_speculative_tokens)
        features_TE = model.prefill(
            start.prompt,
            capacity=_capacity(start),
            sampling=_sampling(start),
            feature_layers=operation.feature_layers,
            raw_features=operation.raw_features,
        )
        return None if features_TE is None else to_block(features_TE)

    def prefix(operation: ops.Prefix) -> ExitSignal:
        return _for_the_wire(model.prefix(operation.window, operation.exit_layer, operation.num_candidates))

    return (
        ops.PrepareTarget.handled_by(prepare),
        ops.PrefillTarget.handled_by(prefill),
        ops.Verify.handled_by(lambda operation: _for_the_wire(model.verify(operation.window))),
        ops.Stream.handled_by(lambda operation: _for_the_wire(model.stream(operation.window))),
        ops.Prefix.handled_by(prefix),
        ops.Suffix.handled_by(lambda _: _for_the_wire(model.suffix())),
    )


class DraftRole:
    """Operations of the draft, and the steps it does between messages."""

    def __init__(self, drafter: WindowDrafter) -> None:
        self._drafter = drafter
        self._branches: BranchSet | None = None
        self._spans: list[tuple[str, float, float, int]] = []
        self.handlers = (
            ops.PrepareDraft.handled_by(self._prepare),
            ops.PrefillDraft.handled_by(self._prefill),
            ops.Rollout.handled_by(self._rollout),
            ops.Branch.handled_by(self._branch),
            ops.Join.handled_by(self._join),
            ops.Take.handled_by(self._take),
            ops.Drop.handled_by(self._drop),
        )

    @property
    def has_work(self) -> bool:
        """Whether there is a step to do before the next message comes."""
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

    def _prepare(self, operation: ops.PrepareDraft) -> None:
        start, num_prompt = operation.start, len(operation.start.prompt)
        self._drafter.prepare(start.schedule, num_prompt=num_prompt, capacity=num_prompt + start.max_new_tokens)

    def _prefill(self, operation: ops.PrefillDraft) -> None:
        start = operation.start
        self._schedule: Schedule = start.schedule
        self._branches, self._spans = None, []
        self._drafter.prefill(
            start.prompt,
            schedule=start.schedule,
            capacity=len(start.prompt) + start.max_new_tokens,
            sampling=_sampling(start),
            features_TE=self._array(operation.features),
        )

    def _rollout(self, operation: ops.Rollout) -> ops.Drafted:
        steps = self._drafter.rollout(operation.committed, self._array(operation.features))
        return self._drafted(Work.ROLLOUT_STEP, steps)

    def _branch(self, operation: ops.Branch) -> None:  # noqa: ARG002
        """Start preparing for the outcomes of the window last drafted; a step that waits for nothing is done here."""
        assert isinstance(self._drafter, Drafter), "branches of a draft that is no language model"
        self._branches = BranchSet(self._drafter, self._schedule)
        if self.has_work:
            self.step()

    def _join(self, operation: ops.Join) -> None:
        assert self._branches is not None, "an exit message without branches"
        signal = operation.signal
        self._branches.join(signal._replace(features=self._array(signal.features)))

    def _take(self, operation: ops.Take) -> ops.Drafted:
        assert self._branches is not None, "nothing to take"
        hit, steps = self._branches.take((operation.num_accepted, operation.next_token))
        self._branches = None
        return self._drafted(Work.FINISH_STEP if hit else Work.ROLLOUT_STEP, steps, hit=hit)

    def _drop(self, operation: ops.Drop) -> ops.Spans:  # noqa: ARG002
        self.forget()
        return self._take_spans()

    def _array(self, features: Block | None) -> Array | None:
        return None if features is None else self._drafter.array(features)

    def _drafted(self, work: Work, steps: Steps, *, hit: bool | None = None) -> ops.Drafted:
        """Run the steps to their window, timing each."""
        while True:
            start_s = time.perf_counter()
            try:
                num_rows = next(steps)
            except StopIteration as end:
                window: Window = end.value
                return ops.Drafted(window=window, spans=self._take_spans(), hit=hit)
            self._spans.append((work, start_s, time.perf_counter(), num_rows))

    def _take_spans(self) -> ops.Spans:
        spans, self._spans = self._spans, []
        return spans


def _capacity(start: ops.SequenceStart) -> int:
    return len(start.prompt) + start.max_new_tokens + start.schedule.num_rows


def _sampling(start: ops.SequenceStart) -> Sampling:
    return Sampling(start.schedule.verification, start.temperature, start.seed, start.replay)


def _for_the_wire(reply: F) -> F:
    return reply if reply.features is None else reply._replace(features=to_block(reply.features))
