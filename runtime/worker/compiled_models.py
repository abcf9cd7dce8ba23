"""The models of a lane that computes by compiled graphs: torch is imported where a head of the target needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoding.errors import LaneError
from runtime.backends.devices import require_device, require_form
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.backends.openvino.packing import arithmetic
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.registry import DrafterContext, known_kind
from runtime.drafters.window_drafter import WindowDrafter
from runtime.storage.stored_decoder import StoredDecoder, load_stored_decoder
from runtime.target.early_exits import exit_of, load_stored_exits
from runtime.target.target_model import TargetModel
from runtime.wire.operations import LoadDraft, LoadStreams, LoadTarget
from runtime.worker.server import leave_imports_alone

if TYPE_CHECKING:
    from runtime.worker.torch_models import TorchModels


class CompiledModels:
    """Loads what a lane is asked for, and shares the target's weights with what leans on it."""

    def __init__(self, num_threads: int) -> None:
        """Args: threads of the lane."""
        self._num_threads = num_threads
        self._target: StoredDecoder | None = None
        self._heads: TorchModels | None = None

    def load_target(self, operation: LoadTarget) -> TargetModel:
        """The target of a folder, with its exits if there are any."""
        dtype = arithmetic(operation.dtype)
        self._target = stored = load_stored_decoder(operation.target, dtype)
        backend = self._open(stored, operation)
        exits = load_stored_exits(operation.exits, stored, dtype) if operation.exits else None
        return TargetModel(backend, exit_of(stored.lm_head.weight, exits, backend))

    def load_streams(self, operation: LoadStreams) -> TargetModel:
        """Raise `LaneError`: streams look at keys."""
        raise LaneError(
            f"{operation.drafter}: streams of a target need a lane of torch: they look at its keys, which are not there"
        )

    def load_drafter(self, operation: LoadDraft) -> WindowDrafter:
        """The drafter of a folder: a draft model by graphs, heads by torch, and what has no weights as it is."""
        kind, dtype = known_kind(operation.drafter), arithmetic(operation.dtype)
        if kind.load_alone is not None:
            return kind.load_alone(operation.drafter)
        if kind.load_stored is None:
            return self._of_torch(operation)
        context = DrafterContext(
            target_folder=operation.target,
            dtype=dtype,
            load_target=lambda: self._target or load_stored_decoder(operation.target, dtype, with_layers=False),
        )
        draft = kind.load_stored(operation.drafter, context)
        draft.run_on(self._open(draft.decoder, operation))
        return Drafter(draft)

    def _of_torch(self, operation: LoadDraft) -> WindowDrafter:
        if self._heads is None:
            from runtime.parallel.group import Group
            from runtime.worker.torch_models import TorchModels

            self._heads = TorchModels(Group.alone(), self._num_threads)
            leave_imports_alone()
        return self._heads.load_drafter(operation)

    def _open(self, stored: StoredDecoder, operation: LoadTarget | LoadDraft) -> CompiledDecoder:
        device = require_device(operation.device)
        require_form(device.name, device.name, operation.dtype)
        return CompiledDecoder(stored, device=device, form=operation.dtype, num_threads=self._num_threads)
