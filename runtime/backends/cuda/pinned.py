"""What crosses between host and device: small tensors in pinned memory that is allocated once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.backends.cuda.capture import new_event


class Upload:
    """A device tensor that is given other values from the host, without waiting for the device."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.is_pinned = device.type == "cuda"
        self._host = torch.zeros(tuple(shape), dtype=dtype, pin_memory=self.is_pinned)
        self.values = torch.zeros(tuple(shape), dtype=dtype, device=device)
        self._sent = new_event() if self.is_pinned else None

    def send(self, values: Tensor) -> None:
        """Have the device tensor hold these from here on in the order of what is asked of the device."""
        if self._sent is not None:
            self._sent.synchronize()  # the copy before it, done long ago but in bursts, still reads the memory
        self._host.copy_(values)
        self.values.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()


class Download:
    """Device tensors brought to the host together: one wait for all of them."""

    def __init__(self, device: torch.device) -> None:
        self._is_pinned = device.type == "cuda"
        self._memory: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        self._done = new_event() if self._is_pinned else None

    def fetch(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Their values, in memory of the caller's own."""
        if self._done is None:
            return tensors
        waiting = [self._copied(place, tensor) for place, tensor in enumerate(tensors)]
        self._done.record()
        self._done.synchronize()
        return tuple(host.clone() for host in waiting)

    def _copied(self, place: int, tensor: Tensor) -> Tensor:
        key = place, tensor.shape, tensor.dtype
        if key not in self._memory:
            self._memory[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return self._memory[key].copy_(tensor, non_blocking=True)
