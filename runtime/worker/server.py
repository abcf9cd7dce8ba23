"""The loop of a lane's process: answers requests first in, first out, and makes steps of branches between them.

The answer to a request with an ``id`` has this id, and the times when the operation started and ended
(`time.perf_counter`). A request without an id has no answer; if it fails, its error is the next answer. Loading a
drafter takes as long as decoding a text, so small drafters are kept.
"""

import gc
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from decoding.errors import LaneError
from runtime.backends.lane_device import CORES, Device, Dtype
from runtime.drafters.registry import require_streams
from runtime.drafters.window_drafter import WindowDrafter
from runtime.garbage_collection import leave_imports_alone
from runtime.target.target_model import TargetModel
from runtime.wire.channel import Block, Channel, Message
from runtime.wire.codec import Written
from runtime.wire.operations import DrafterTraits, Handler, handlers_of, operation
from runtime.worker.roles import DraftRole
from runtime.worker.timing import MeasureRole

if TYPE_CHECKING:
    from runtime.parallel.group import Group
    from runtime.parallel.local_group import GroupChannel
    from runtime.worker.compiled_models import CompiledModels
    from runtime.worker.torch_models import TorchModels


def models_on(device: Device, num_threads: int, group: "Group | None" = None) -> "TorchModels | CompiledModels":
    """Return the loader of a device's models, importing only that device's library."""
    if device.is_compiled:
        from runtime.worker.compiled_models import CompiledModels

        return CompiledModels(device, num_threads)
    from runtime.worker.torch_models import TorchModels

    return TorchModels(device, num_threads, group)


KEPT_BYTES: Final = 300_000_000
"""Most bytes of the files of all kept drafters; the least recently used are dropped, so a larger one is not kept."""


class LaneServer:
    """Serves a lane's requests: to load a target or a drafter or both, and the operations of their roles."""

    def __init__(
        self,
        channel: "Channel | GroupChannel",
        device: Device = CORES,
        *,
        num_threads: int = 1,
        group: "Group | None" = None,
        on_failure: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        """Args: `on_failure` is called with each error that an answer will report, once it is known."""
        self._channel, self._device, self._num_threads, self._group = channel, device, num_threads, group
        self._draft: DraftRole | None = None
        self._kept: dict[tuple[Path, Path, Dtype], WindowDrafter] = {}
        self._measure = MeasureRole(channel)
        self._failure: Exception | None = None
        self._on_failure = on_failure
        self._handlers: dict[str, Handler] = handlers_of(self) | handlers_of(self._measure)

    def serve_process(self) -> None:
        """Import the device's library before the first request, and serve."""
        _ = self._models
        leave_imports_alone()
        self.serve()

    def serve(self) -> None:
        """Answer requests until the other end is gone."""
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
            reply = handler(message)
        except EOFError:
            raise
        except Exception as error:  # noqa: BLE001  the answer reports it and the parent raises it
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
        except Exception as error:  # noqa: BLE001  the next answer reports it
            self._fail(error)
            draft.forget()

    def _fail(self, error: Exception) -> None:
        """Keep the first failure, as later ones are mostly its consequences."""
        if self._failure is None:
            self._failure = error
            self._on_failure(error)

    @operation
    def ping(self, load: tuple[Block, ...] = ()) -> None:
        """Do nothing; `load` is a payload, to time its transfer."""

    @operation
    def load_target(self, target: Path, exits: Path | None, dtype: Dtype) -> None:
        """Load the target of a folder, with its trained exits if any."""
        self._kept.clear()  # kept drafters share the embedding of the previous target
        self._run_target(self._models.load_target(target, exits, dtype))

    @operation
    def load_streams(self, drafter: Path) -> None:
        """Load streams for the loaded target."""
        if self._group is not None:
            raise LaneError(f"streams need their target in one process; this one is on {self._group.world_size} ranks")
        require_streams(drafter)
        self._run_target(self._models.load_streams(drafter))

    def _run_target(self, model: TargetModel) -> None:
        self._measure.target = model
        self._handlers |= handlers_of(model)

    def _drop_draft(self) -> None:
        """Free the current drafter unless it is kept, as there may be no room for two."""
        for name in () if self._draft is None else handlers_of(self._draft):
            del self._handlers[name]
        self._draft = self._measure.drafter = None
        gc.collect()

    @cached_property
    def _models(self) -> "TorchModels | CompiledModels":
        """The loader of the lane's models."""
        return models_on(self._device, self._num_threads, self._group)

    @operation
    def load_draft(self, target: Path, drafter: Path, dtype: Dtype) -> DrafterTraits:
        """Load a drafter of this target from its folder."""
        asked = target, drafter, dtype
        loaded = self._kept.pop(asked, None)
        is_new = loaded is None
        if loaded is None:
            self._drop_draft()
            loaded = self._models.load_drafter(target, drafter, dtype)
        if self._group is None:
            self._kept[asked] = loaded
            while sum(_num_bytes(folder) for _, folder, _ in self._kept) > KEPT_BYTES:
                del self._kept[next(iter(self._kept))]
        if is_new:
            gc.collect()  # frees dropped drafters now rather than while a text is decoded
        self._measure.drafter = loaded
        self._draft = DraftRole(loaded)
        self._handlers |= handlers_of(self._draft)
        return DrafterTraits(
            folder=drafter,
            feature_layers=loaded.feature_layers,
            raw_features=loaded.raw_features,
            methods=loaded.methods,
            num_streams=loaded.num_streams,
            kept=tuple(folder for _, folder, _ in self._kept),
        )


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
