"""The loop inside a lane's process: first in, first out, and draft steps while no message is there.

A message with an ``id`` is answered by one with the same id. One without is not; should it fail, its error is the
next answer. Every answer has the times when its operation started and ended (`time.perf_counter`, one clock for all
processes of a machine).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch

from decoding.errors import LaneError
from runtime.backends.backend import Backend
from runtime.backends.devices import EAGER
from runtime.backends.opening import arithmetic, backend_opener, torch_threads
from runtime.backends.self_test import is_row_invariant
from runtime.drafters.registry import DrafterContext, load_drafter, require_streams
from runtime.drafters.streams.folder import load_streams
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.decoder import Decoder
from runtime.models.weights import load_decoder
from runtime.parallel.group import Group
from runtime.parallel.sharded_target import load_sharded_target
from runtime.target.exit_folder import ExitHeads, load_exits
from runtime.target.streaming_target import StreamingTarget
from runtime.target.target_model import TargetModel
from runtime.wire.channel import Message, MessageEnd
from runtime.wire.codec import Written
from runtime.wire.operations import (
    DrafterTraits,
    Handler,
    IsRowInvariant,
    LoadDraft,
    LoadStreams,
    LoadTarget,
    Ping,
)
from runtime.worker.kept_drafters import KeptDrafters
from runtime.worker.roles import DraftRole, target_handlers
from runtime.worker.timing import MeasureRole


class LaneServer:
    """A lane with the roles it was asked to load: target, draft, or both."""

    def __init__(self, channel: MessageEnd, group: Group | None = None, *, num_threads: int = 1) -> None:
        """Args: whom it answers; the ranks that share its target, all of which run the same operations; its threads."""
        self._channel, self._group, self._num_threads = channel, group or Group.alone(), num_threads
        self._decoder: Decoder | None = None
        self._heads: ExitHeads | None = None
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

    def serve(self) -> None:
        """Answer until the other end is gone."""
        try:
            while True:
                self._serve_one()
        except EOFError:
            return

    def _serve_one(self) -> None:
        if self._draft is not None and self._draft.has_work and not self._channel.has_message():
            self._step(self._draft)
            return
        self._answer(self._channel.receive())

    def _answer(self, message: Message) -> None:
        start_s = time.perf_counter()
        reply = Written(None, [])
        try:
            reply = self._handler(message.fields["op"]).run(message)
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

    def _handler(self, name: str) -> Handler:
        if name not in self._handlers:
            known = ", ".join(sorted(self._handlers))
            raise LaneError(f"this lane has no operation {name!r}; it has loaded those of: {known}")
        return self._handlers[name]

    def _handle(self, *handlers: Handler) -> None:
        """From now on answer to these operations too."""
        self._handlers |= {handler.name: handler for handler in handlers}

    def _load_target(self, operation: LoadTarget) -> None:
        dtype, new_backend = arithmetic(operation.dtype), self._open(operation)
        if self._group.world_size > 1:
            if operation.device != EAGER:
                raise LaneError(f"a target on several ranks is computed by torch, not by {operation.device}")
            self._run_target(load_sharded_target(operation, self._group, dtype=dtype))
            return
        self._kept = KeptDrafters()  # they share the embedding of the target before
        self._decoder = decoder = load_decoder(
            operation.target, dtype=dtype, shares_random=operation.dtype in ("int8", "int4")
        )
        backend = new_backend(decoder)  # it may move the weights, and exits go where they are
        self._heads = load_exits(operation.exits, decoder, dtype=dtype) if operation.exits else None
        self._run_target(TargetModel(decoder, self._heads, backend=backend))

    def _load_streams(self, operation: LoadStreams) -> None:
        """From now on the target is one that can draft for itself."""
        if self._group.world_size > 1:
            raise LaneError(f"streams need their target in one process; this one is on {self._group.world_size} ranks")
        assert self._decoder is not None, "streams without their target"
        require_streams(operation.drafter)
        if self._measure.target is not None and not self._measure.target.backend.has_open_keys:
            raise LaneError("streams of a target need a lane of torch: they look at its keys, which are not there")
        streams = load_streams(operation.drafter, self._decoder)
        self._run_target(StreamingTarget(self._decoder, streams, self._heads))

    def _run_target(self, model: TargetModel) -> None:
        self._measure.target = model
        self._handle(*target_handlers(model), IsRowInvariant.handled_by(lambda _: is_row_invariant(model.backend)))

    def _open(self, operation: LoadTarget | LoadDraft) -> Callable[[Decoder], Backend]:
        torch.set_num_threads(torch_threads(operation.device, self._num_threads))
        return backend_opener(operation.device, operation.dtype, num_threads=self._num_threads)

    def _load_draft(self, operation: LoadDraft) -> DrafterTraits:
        """Replies what the drafter reads of the target, and which methods it is for."""
        drafter = self._kept.get(operation)
        if drafter is None:
            drafter = self._loaded_drafter(operation)
            if self._group.world_size == 1:
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
        )

    def _loaded_drafter(self, operation: LoadDraft) -> WindowDrafter:
        dtype = arithmetic(operation.dtype)

        def load_target() -> Decoder:
            # a lane of its own needs no more of the target than what a drafter shares with it
            if self._decoder is not None and self._decoder.embedding.weight.is_cpu:
                return self._decoder
            return load_decoder(operation.target, dtype=dtype, with_layers=False)

        context = DrafterContext(
            target_folder=operation.target, dtype=dtype, load_target=load_target, group=self._group
        )
        drafter = self._group.all_do(lambda: load_drafter(operation.drafter, context))
        drafter.run_on(self._open(operation))
        return drafter
