"""What a lane does with its models: one method for every operation of a message, for the target and the draft.

An operation takes a `Message` and returns one. Times are read here, in the lane, and nowhere else; draft steps
are listed one by one as ``spans`` of [work, start, end, rows] in the reply of the operation that ends them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from decoding.messages import Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.drafters.language_model.branch_set import BranchSet
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.window_drafter import Steps, WindowDrafter
from runtime.target.streaming_target import StreamingTarget
from runtime.target.target_model import TargetModel
from runtime.verification.rules import Sampling
from runtime.wire.channel import Message
from runtime.wire.tensor_block import to_block, to_tensor
from runtime.wire.wire_messages import read_signal, read_window, write_signal, write_verdict, write_window

Operation = Callable[[Message], Message]

NOTHING = Message({})


class TargetRole:
    """Operations of the target."""

    def __init__(self, model: TargetModel) -> None:
        self.model = model

    @property
    def operations(self) -> dict[str, Operation]:
        """By the name a message calls them."""
        return {
            "prefill_target": self.prefill,
            "verify": self.verify,
            "stream": self.stream,
            "prefix": self.prefix,
            "suffix": self.suffix,
        }

    def prefill(self, message: Message) -> Message:
        """Start a sequence; replies its features if there are to be any."""
        fields = message.fields
        schedule = Schedule.model_validate(fields["schedule"])
        if isinstance(self.model, StreamingTarget):
            self.model.set_tree(size=schedule.tree_size, depth=schedule.num_speculative_tokens)
        features_TE = self.model.prefill(
            fields["prompt"],
            capacity=len(fields["prompt"]) + fields["max_new_tokens"] + schedule.num_rows,
            sampling=Sampling(*fields["sampling"]),
            feature_layers=tuple(fields["feature_layers"]),
            raw_features=fields["raw_features"],
        )
        return NOTHING if features_TE is None else Message({}, (to_block(features_TE),))

    def verify(self, message: Message) -> Message:
        """All layers; replies the verdict."""
        return _write_verdict(self.model.verify(read_window(message)))

    def stream(self, message: Message) -> Message:
        """All layers and the streams behind what stands; replies the verdict, the next window in it."""
        assert isinstance(self.model, StreamingTarget), "streaming by a target without streams"
        return _write_verdict(self.model.stream(read_window(message)))

    def prefix(self, message: Message) -> Message:
        """The layers up to the exit; replies the exit message."""
        fields = message.fields
        signal = self.model.prefix(read_window(message), fields["exit_layer"], fields["num_candidates"])
        if signal.features is not None:
            signal = signal._replace(features=to_block(signal.features))
        return write_signal(signal)

    def suffix(self, message: Message) -> Message:  # noqa: ARG002
        """The layers behind the exit; replies the verdict."""
        return _write_verdict(self.model.suffix())


class DraftRole:
    """Operations of the draft, and the steps it does between messages."""

    def __init__(self, drafter: WindowDrafter) -> None:
        self.drafter = drafter
        self._branches: BranchSet | None = None
        self._spans: list[tuple[str, float, float, int]] = []
        self._schedule: Schedule | None = None

    @property
    def operations(self) -> dict[str, Operation]:
        """By the name a message calls them."""
        return {
            "prefill_draft": self.prefill,
            "rollout": self.rollout,
            "branch": self.branch,
            "join": self.join,
            "take": self.take,
            "drop": self.drop,
        }

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

    def prefill(self, message: Message) -> Message:
        """Start a sequence, with the target's features of the prompt if the schedule has any."""
        fields = message.fields
        self._schedule = schedule = Schedule.model_validate(fields["schedule"])
        self._branches, self._spans = None, []
        self.drafter.prefill(
            fields["prompt"],
            schedule=schedule,
            capacity=len(fields["prompt"]) + fields["max_new_tokens"],
            sampling=Sampling(*fields["sampling"]),
            features_TE=to_tensor(message.blocks[0]) if message.blocks else None,
        )
        return NOTHING

    def rollout(self, message: Message) -> Message:
        """Draft from the committed text; replies the window."""
        features_TE = to_tensor(message.blocks[0]) if message.blocks else None
        return self._finish(Work.ROLLOUT_STEP, self.drafter.rollout(message.fields["committed"], features_TE))

    def branch(self, message: Message) -> Message:  # noqa: ARG002
        """Start preparing for the outcomes of the window last drafted; a step that waits for nothing is done here."""
        assert self._schedule is not None, "branches without a sequence"
        assert isinstance(self.drafter, Drafter), "branches of a draft that is no language model"
        self._branches = BranchSet(self.drafter, self._schedule)
        if self.has_work:
            self.step()
        return NOTHING

    def join(self, message: Message) -> Message:
        """Add the exit's roots."""
        assert self._branches is not None, "an exit message without branches"
        signal = read_signal(message)
        if signal.features is not None:
            signal = signal._replace(features=to_tensor(signal.features))
        self._branches.join(signal)
        return NOTHING

    def take(self, message: Message) -> Message:
        """Keep one branch or none, and finish the next window; replies it, and whether it was a hit."""
        assert self._branches is not None, "nothing to take"
        hit, steps = self._branches.take((message.fields["num_accepted"], message.fields["next_token"]))
        self._branches = None
        return self._finish(Work.FINISH_STEP if hit else Work.ROLLOUT_STEP, steps, hit=hit)

    def drop(self, message: Message) -> Message:  # noqa: ARG002
        """Forget the branches: the sequence has ended."""
        self.forget()
        return self._with_spans(NOTHING)

    def forget(self) -> None:
        """Stop preparing."""
        self._branches = None

    def _finish(self, work: Work, steps: Steps, **fields: Any) -> Message:
        return self._with_spans(write_window(self._run(work, steps)), **fields)

    def _run(self, work: Work, steps: Steps) -> Window:
        while True:
            start_s = time.perf_counter()
            try:
                num_rows = next(steps)
            except StopIteration as end:
                window: Window = end.value
                return window
            self._spans.append((work, start_s, time.perf_counter(), num_rows))

    def _with_spans(self, message: Message, **fields: Any) -> Message:
        spans, self._spans = self._spans, []
        return message._replace(fields={**message.fields, **fields, "spans": spans})


def _write_verdict(verdict: Verdict) -> Message:
    if verdict.features is not None:
        verdict = verdict._replace(features=to_block(verdict.features))
    return write_verdict(verdict)
