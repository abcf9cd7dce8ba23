"""Loads the models of a lane that computes by torch, eagerly or by captured graphs."""

from collections.abc import Callable
from pathlib import Path

import torch

from decoding.errors import LaneError
from runtime.backends.backend import Backend
from runtime.backends.eager import EagerBackend, arithmetic, backend_opener, torch_threads
from runtime.backends.lane_device import Device, Dtype
from runtime.drafters.registry import DrafterContext, known_kind, load_drafter
from runtime.drafters.streams import StreamingTarget, load_streams
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.decoder import Decoder, load_decoder
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import load_sharded_decoder
from runtime.target.early_exits import ExitHeads, load_exits
from runtime.target.target_model import TargetModel


class TorchModels:
    """Loads the models of a lane, or for recording acceptance; drafters share the target's weights."""

    def __init__(self, device: Device, num_threads: int, group: Group | None = None) -> None:
        self._device, self._num_threads, self._group = device, num_threads, group or Group.alone()
        self.decoder: Decoder | None = None
        self.heads: ExitHeads | None = None

    def load_target(self, target: Path, exits: Path | None, form: Dtype) -> TargetModel:
        """Load the target of a folder, with its exits."""
        dtype = arithmetic(form)
        if self._group.world_size > 1:
            return self._group.all_do(lambda: self._load_share(target, exits, dtype))
        new_backend = self._opener(form)
        self.decoder = decoder = load_decoder(target, dtype=dtype)
        backend = new_backend(decoder)  # may move the weights; exits are then loaded to the same device
        self.heads = load_exits(exits, decoder, dtype=dtype) if exits else None
        return TargetModel.of(decoder, self.heads, backend=backend)

    def _load_share(self, target: Path, exits: Path | None, dtype: torch.dtype) -> TargetModel:
        decoder = load_sharded_decoder(target, self._group, dtype=dtype)
        return TargetModel.of(decoder, load_exits(exits, decoder.shape, dtype=dtype) if exits else None)

    def load_streams(self, folder: Path) -> StreamingTarget:
        """Load streams for the loaded target, and return a target that can draft for itself."""
        assert self.decoder is not None, "streams without their target"
        if not self._device.has_readable_cache:
            raise LaneError(
                f"{folder}: streams of a target need a lane of torch: captured calls hide the keys that they read"
            )
        return StreamingTarget(self.decoder, load_streams(folder, self.decoder), self.heads)

    def load_drafter(self, target: Path, folder: Path, form: Dtype) -> WindowDrafter:
        """Load the drafter of a folder."""
        dtype = arithmetic(form)
        # a draft model's back end moves it to the device; heads are computed where the target's weights are
        place = self._place if known_kind(folder).method is not None else torch.device("cpu")

        def load_target() -> Decoder:
            # in a lane without the target, only the parts that the drafter shares are loaded
            if self.decoder is not None and self.decoder.embedding.weight.device == place:
                return self.decoder
            return load_decoder(target, dtype=dtype, with_layers=False).to(place)

        context = DrafterContext(
            target_folder=target,
            dtype=dtype,
            load_target=load_target,
            new_backend=self._opener(form),
            group=self._group,
        )
        return self._group.all_do(lambda: load_drafter(folder, context))

    @property
    def _place(self) -> torch.device:
        if self._group.world_size > 1:
            return torch.device(self._group.device)
        return torch.device(self._device.name if self._device.library == "cuda" else "cpu")

    def _opener(self, form: Dtype) -> Callable[[Decoder], Backend]:
        """Return a function from decoder to back end; ranks compute eagerly, on cores or each on its GPU."""
        if self._group.world_size > 1:
            return lambda decoder: EagerBackend(decoder.to(self._group.device))
        torch.set_num_threads(torch_threads(self._device, self._num_threads))
        return backend_opener(self._device, form)
