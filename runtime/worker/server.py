"""The loop inside a lane's process: first in, first out, and draft steps while no message is there.

A message with an ``id`` is answered by one with the same id, with the times when its operation started and ended
(`time.perf_counter`). One without is not; should it fail, its error is the next answer. Loading a drafter takes as long
as a text, so a few small ones stay (`KeptDrafters`).
"""

from __future__ import annotations

import gc
import time
from functools import cached_property
from typing import TYPE_CHECKING, Final

from decoding.errors import LaneError
from runtime.backends.lane_device import CORES, Device
from runtime.backends.self_test import is_row_invariant
from runtime.drafters.registry import require_streams
from runtime.drafters.window_drafter import WindowDrafter
from runtime.instruction_set import described
from runtime.target.target_model import TargetModel
from runtime.wire.channel import Channel, Message
from runtime.wire.codec import Written
from runtime.wire.operations import (
    CheckRows,
    DrafterTraits,
    Handler,
    LoadDraft,
    LoadStreams,
    LoadTarget,
    Ping,
    RowInvariance,
)
from runtime.worker.roles import DraftRole, target_handlers
from runtime.worker.timing import MeasureRole

if TYPE_CHECKING:
    from runtime.parallel.group import Group
    from runtime.parallel.local_group import GroupChannel
    from runtime.worker.compiled_models import CompiledModels
    from runtime.worker.torch_models import TorchModels


def leave_imports_alone() -> None:
    """Let no collection of garbage look again at what has been imported: it stays as long as the process."""
    gc.collect()
    gc.freeze()


KEPT_BYTES: Final = 300_000_000
"""Bytes of the files of all drafters that stay; a larger one is held only while it is the last one asked for."""


class KeptDrafters:
    """Drafters by what asked for them; those not asked for for longest go."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._drafters: dict[LoadDraft, tuple[WindowDrafter, int]] = {}

    def get(self, operation: LoadDraft) -> WindowDrafter | None:
        """Return a drafter, if it has stayed."""
        if operation not in self._drafters:
            return None
        self._drafters[operation] = self._drafters.pop(operation)  # now the one asked for last
        return self._drafters[operation][0]

    def add(self, operation: LoadDraft, drafter: WindowDrafter) -> None:
        """Keep a drafter, if it is small."""
        num_bytes = sum(path.stat().st_size for path in operation.drafter.glob("*.safetensors"))
        self._drafters[operation] = drafter, num_bytes
        while sum(size for _, size in self._drafters.values()) > self._most_bytes:
            del self._drafters[next(iter(self._drafters))]


class LaneServer:
    """A lane with the roles it was asked to load: target, draft, or both."""

    def __init__(
        self,
        channel: Channel | GroupChannel,
        device: Device = CORES,
        *,
        num_threads: int = 1,
        group: Group | None = None,
    ) -> None:
        """Take whom it answers, where it computes with how many threads, and the ranks that share its target."""
        self._channel, self._device, self._num_threads, self._group = channel, device, num_threads, group
        self._draft: DraftRole | None = None
        self._kept = KeptDrafters()
        self._measure = MeasureRole(channel)
        self._failure: Exception | None = None
        self._handlers: dict[str, Handler] = {}
        self._handle(
            Ping.handled_by(lambda _: None),
            LoadTarget.handled_by(self._load_target),
            LoadDraft.handled_by(self._load_draft),
            LoadStreams.handled_by(self._load_streams),
            *self._measure.handlers,
        )

    def serve_process(self) -> None:
        """Import what computes on the device, before anybody waits for it, and serve."""
        _ = self._models
        leave_imports_alone()
        self.serve()

    def serve(self) -> None:
        """Answer until the other end is gone."""
        try:
            while True:
                if self._draft is not None and self._draft.has_work and not self._channel.has_message():
                    self._step(self._draft)
                else:
                    self._answer(self._channel.receive())
        except EOFError:
            return

    def _answer(self, message: Message) -> None:
        start_s = time.perf_counter()
        reply = Written(None, [])
        try:
            if (handler := self._handlers.get(name := message.fields["op"])) is None:
                known = ", ".join(sorted(self._handlers))
                raise LaneError(f"this lane has no operation {name!r}; it has loaded those of: {known}")
            reply = handler.run(message)
        except EOFError:
            raise
        except Exception as error:  # noqa: BLE001  the answer carries it and the parent raises it
            self._fail(error)
        if message.fields["id"] is None:
            return
        times = {"id": message.fields["id"], "start_s": start_s}
        if self._failure is None:
            self._channel.send({**times, "reply": reply.json, "end_s": time.perf_counter()}, reply.blocks)
            return
        failure, self._failure = self._failure, None
        self._channel.send({**times, "error": type(failure).__name__, "text": str(failure)})

    def _step(self, draft: DraftRole) -> None:
        try:
            draft.step()
        except Exception as error:  # noqa: BLE001  the next answer carries it
            self._fail(error)
            draft.forget()

    def _fail(self, error: Exception) -> None:
        """Keep the first failure: those after it are mostly its consequences."""
        self._failure = self._failure or error

    def _handle(self, *handlers: Handler) -> None:
        self._handlers |= {handler.name: handler for handler in handlers}

    def _load_target(self, operation: LoadTarget) -> None:
        self._kept = KeptDrafters()  # they share the embedding of the target before
        self._run_target(self._models.load_target(operation))

    def _load_streams(self, operation: LoadStreams) -> None:
        if self._group is not None:
            raise LaneError(f"streams need their target in one process; this one is on {self._group.world_size} ranks")
        require_streams(operation.drafter)
        self._run_target(self._models.load_streams(operation))

    def _run_target(self, model: TargetModel) -> None:
        self._measure.target = model

        def check(_: CheckRows) -> RowInvariance:
            is_invariant = is_row_invariant(model.backend)
            return RowInvariance(is_invariant, model.backend.least_rows, described())

        self._handle(*target_handlers(model), CheckRows.handled_by(check))

    @cached_property
    def _models(self) -> TorchModels | CompiledModels:
        """What loads the lane's models; only the library that computes is imported."""
        if self._device.is_compiled:
            from runtime.worker.compiled_models import CompiledModels

            return CompiledModels(self._device, self._num_threads)
        from runtime.worker.torch_models import TorchModels

        return TorchModels(self._device, self._num_threads, self._group)

    def _load_draft(self, operation: LoadDraft) -> DrafterTraits:
        drafter = self._kept.get(operation)
        if drafter is None:
            drafter = self._models.load_drafter(operation)
            if self._group is None:
                self._kept.add(operation, drafter)
            gc.collect()  # a draft before it goes now, and not in the middle of a text
        self._measure.drafter = drafter
        self._draft = DraftRole(drafter)
        self._handle(*self._draft.handlers)
        return DrafterTraits(
            folder=operation.drafter,
            feature_layers=drafter.feature_layers,
            raw_features=drafter.raw_features,
            methods=drafter.methods,
            num_streams=drafter.num_streams,
        )
