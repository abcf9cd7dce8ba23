"""What is special to a GPU: functions captured once and replayed, waiting for it, and its memory running out.

On the CPU a function itself is called on the same buffers. So everything but the capture runs without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from decoding.errors import MemoryFitError

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


@contextmanager
def fitting(what: str, device: torch.device) -> Iterator[None]:
    """Raise `MemoryFitError`, with numbers, in place of torch's error where a device has no room for something."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        numbers = ""
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            numbers = f": {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
        raise MemoryFitError(f"{device} has no room for {what}{numbers}") from error
