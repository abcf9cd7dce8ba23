"""The models of a lane that torch computes, eagerly or by captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.backends.backend import Backend
from runtime.backends.eager import EagerBackend, arithmetic, backend_opener, torch_threads
from runtime.backends.lane_device import Device, Dtype
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

    def __init__(self, device: Device, num_threads: int, group: Group | None = None) -> None:
        """Take the lane's device and threads, and the ranks that share its target (None: one)."""
        self._device, self._num_threads, self._group = device, num_threads, group or Group.alone()
        self._decoder: Decoder | None = None
        self._heads: ExitHeads | None = None

    def load_target(self, operation: LoadTarget) -> TargetModel:
        """Load the target of a folder, with its exits."""
        dtype = arithmetic(operation.dtype)
        if self._group.world_size > 1:
            return self._group.all_do(lambda: self._load_share(operation, dtype))
        new_backend = self._opener(operation.dtype)
        self._decoder = decoder = load_decoder(operation.target, dtype=dtype)
        backend = new_backend(decoder)  # it may move the weights, and exits go where they are
        self._heads = load_exits(operation.exits, decoder, dtype=dtype) if operation.exits else None
        return TargetModel.of(decoder, self._heads, backend=backend)

    def _load_share(self, operation: LoadTarget, dtype: torch.dtype) -> TargetModel:
        """Load this rank's share of a target, whose exits are whole on every rank."""
        decoder = load_sharded_decoder(operation.target, self._group, dtype=dtype)
        exits = load_exits(operation.exits, decoder.shape, dtype=dtype) if operation.exits else None
        return TargetModel.of(decoder, exits)

    def load_streams(self, operation: LoadStreams) -> TargetModel:
        """Load streams for the target loaded last, and return it as one that can draft for itself."""
        assert self._decoder is not None, "streams without their target"
        return StreamingTarget(self._decoder, load_streams(operation.drafter, self._decoder), self._heads)

    def load_drafter(self, operation: LoadDraft) -> WindowDrafter:
        """Load the drafter of a folder."""
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
        drafter.run_on(self._opener(operation.dtype))
        return drafter

    def _opener(self, form: Dtype) -> Callable[[Decoder], Backend]:
        """Return what makes a back end of a decoder; each rank computes eagerly on cores or a GPU of its own."""
        if self._group.world_size > 1:
            return lambda decoder: EagerBackend(decoder.to(self._group.device))
        torch.set_num_threads(torch_threads(self._device, self._num_threads))
        return backend_opener(self._device, form, num_threads=self._num_threads)
