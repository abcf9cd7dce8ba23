"""The models of a lane that torch computes, eagerly or by captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from decoding.errors import LaneError
from runtime.backends.backend import Backend
from runtime.backends.eager import EagerBackend, arithmetic, backend_opener, torch_threads
from runtime.backends.lane_device import Device
from runtime.drafters.registry import DrafterContext, load_drafter
from runtime.drafters.streams import StreamingTarget, load_streams
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.decoder import Decoder, load_decoder
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import load_sharded_decoder
from runtime.target.early_exits import ExitHeads, load_exits
from runtime.target.target_model import TargetModel
from runtime.wire.operations import LoadDraft, LoadStreams, LoadTarget


class TorchModels:
    """Loads what a lane is asked for, and shares the target's weights with what leans on it."""

    def __init__(self, group: Group, num_threads: int) -> None:
        """Args: the ranks that share its target; threads of the lane."""
        self._group, self._num_threads = group, num_threads
        self._decoder: Decoder | None = None
        self._heads: ExitHeads | None = None

    def load_target(self, operation: LoadTarget) -> TargetModel:
        """The target of a folder, with its exits; raises `LaneError` for ranks on what torch does not compute."""
        dtype, new_backend = arithmetic(operation.dtype), self._open(operation)
        if self._group.world_size > 1:
            own, device = torch.device(self._group.device).type, Device.of_lane(operation.device)
            if device.own_name.partition(":")[0] != own:
                raise LaneError(f"a target on several ranks is computed by torch on their {own}, not by {device.name}")
            return self._group.all_do(lambda: self._load_share(operation, dtype))
        self._decoder = decoder = load_decoder(operation.target, dtype=dtype)
        backend = new_backend(decoder)  # it may move the weights, and exits go where they are
        self._heads = load_exits(operation.exits, decoder, dtype=dtype) if operation.exits else None
        return TargetModel.of(decoder, self._heads, backend=backend)

    def _load_share(self, operation: LoadTarget, dtype: torch.dtype) -> TargetModel:
        """This rank's share of a target, whose exits are whole on every rank."""
        decoder = load_sharded_decoder(operation.target, self._group, dtype=dtype)
        return TargetModel.of(
            decoder, load_exits(operation.exits, decoder.shape, dtype=dtype) if operation.exits else None
        )

    def load_streams(self, operation: LoadStreams) -> TargetModel:
        """The target loaded last as one that can draft for itself."""
        assert self._decoder is not None, "streams without their target"
        return StreamingTarget(self._decoder, load_streams(operation.drafter, self._decoder), self._heads)

    def load_drafter(self, operation: LoadDraft) -> WindowDrafter:
        """The drafter of a folder."""
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

    def _open(self, operation: LoadTarget | LoadDraft) -> Callable[[Decoder], Backend]:
        device = Device.of_lane(operation.device)
        if self._group.world_size > 1:  # each rank has cores or a GPU of its own, and computes there eagerly
            return lambda decoder: EagerBackend(decoder.to(self._group.device))
        torch.set_num_threads(torch_threads(device, self._num_threads))
        return backend_opener(device, operation.dtype, num_threads=self._num_threads)
