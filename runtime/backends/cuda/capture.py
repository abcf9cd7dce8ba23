"""What is special to a GPU: functions captured once and replayed, and what crosses between host and device.

On the CPU a function itself is called on the same buffers. So everything but the capture runs without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

_WARM_UP: Final = 3
"""Runs before a capture: libraries choose kernels and allocate in them, which a capture must not."""

new_event: Final[Callable[..., torch.cuda.Event]] = torch.cuda.Event
new_stream: Final[Callable[..., torch.cuda.Stream]] = torch.cuda.Stream
"""With types, which torch leaves open."""

Replay = Callable[[], object]
"""One more run on what the buffers hold now."""


class GraphCapture:
    """Captures functions that allocate nothing they leave behind, read no value on the host, and write buffers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def captured(self, run: Replay) -> Replay:
        """The function as a graph; it runs a few times on what the buffers hold."""
        if self.device.type != "cuda":
            return run
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            warm_up = new_stream(self.device)
            warm_up.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm_up):
                for _ in range(_WARM_UP):
                    run()
            torch.cuda.current_stream().wait_stream(warm_up)
            # graphs of one pool share memory: they run one after the other, and leave nothing in it
            with torch.cuda.graph(graph, pool=self._pool):
                run()
        return graph.replay


def wait(device: torch.device) -> None:
    """Until everything asked of a device by this thread is done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


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
