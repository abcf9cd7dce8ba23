"""Loads the models of a lane that computes by compiled graphs; torch is imported only for draft heads."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from decoding.errors import LaneError
from runtime.backends.lane_device import Device, Dtype
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.backends.openvino.packing import arithmetic
from runtime.drafters.registry import DrafterContext, known_kind
from runtime.drafters.window_drafter import WindowDrafter
from runtime.garbage_collection import leave_imports_alone
from runtime.storage.stored_decoder import StoredDecoder, load_stored_decoder
from runtime.target.early_exits import EarlyExit, load_stored_exits
from runtime.target.target_model import TargetModel

if TYPE_CHECKING:
    from runtime.worker.torch_models import TorchModels


class CompiledModels:
    """Loads the models of a lane; drafters share the target's weights."""

    def __init__(self, device: Device, num_threads: int) -> None:
        self._device, self._num_threads = device, num_threads
        self._target: StoredDecoder | None = None

    def load_target(self, target: Path, exits: Path | None, form: Dtype) -> TargetModel:
        """Load the target of a folder, with its trained exits if any."""
        dtype = arithmetic(form)
        self._target = stored = load_stored_decoder(target, dtype)
        backend = self._open(stored, form)
        heads = load_stored_exits(exits, stored, dtype) if exits else None
        return TargetModel(backend, EarlyExit(stored.lm_head.weight, heads, backend))

    def load_streams(self, folder: Path) -> NoReturn:
        """Raise `LaneError`, as streams read the target's KV cache, which compiled models do not expose."""
        raise LaneError(
            f"{folder}: streams of a target need a lane of torch: compiled models hide the keys that they read"
        )

    def load_drafter(self, target: Path, folder: Path, form: Dtype) -> WindowDrafter:
        """Load the drafter of a folder: a draft model as graphs, a draft head by torch, prompt lookup by neither."""
        kind, dtype = known_kind(folder), arithmetic(form)
        if kind.needs_torch:
            return self._torch_models.load_drafter(target, folder, form)
        context = DrafterContext(
            target_folder=target,
            dtype=dtype,
            load_target=lambda: self._target or load_stored_decoder(target, dtype, with_layers=False),
            new_backend=lambda decoder: self._open(decoder, form),
        )
        return kind.load(folder, context)

    @cached_property
    def _torch_models(self) -> "TorchModels":
        from runtime.worker.torch_models import TorchModels

        models = TorchModels(self._device, self._num_threads)
        leave_imports_alone()
        return models

    def _open(self, stored: StoredDecoder, form: Dtype) -> CompiledDecoder:
        return CompiledDecoder(stored, device=self._device, form=form, num_threads=self._num_threads)
