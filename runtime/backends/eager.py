"""The torch back end, which runs the decoder layer by layer: the reference, and the fallback if nothing is compiled.

`backend_opener` chooses torch's back end for a lane, this one or that of `runtime.backends.cuda`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from runtime.backends.backend import Backend, Head
from runtime.backends.devices import require_device, require_form
from runtime.backends.kv_memory import Segment
from runtime.backends.lane_device import Device, Dtype
from runtime.models.decoder import Decoder
from runtime.models.kv_cache import BranchCache, KVCache
from runtime.models.row_invariance import Linear
from runtime.wire.channel import Block, to_tensor


class TorchBackend(Backend):
    """Base of the back ends in torch: hidden states are tensors on a device."""

    self_test_chunks: tuple[tuple[int, ...], ...] = ((1,) * 12, (2, 3, 4, 3), (5, 7), (12,))

    def __init__(self, decoder: Decoder) -> None:
        self.config, self._decoder = decoder.config, decoder
        self.dtype, self.device = decoder.embedding.weight.dtype, decoder.embedding.weight.device

    @torch.inference_mode()
    def embedding(self, ids: Any) -> Tensor:
        """See `Backend`; layers add learned positions."""
        return self._decoder.embedding(torch.as_tensor(ids, device=self.device))  # type: ignore[no-any-return]

    def normalise(self, x: Tensor) -> Tensor:
        """See `Backend`."""
        return self._decoder.normalise(x)

    def logits(self, x_BTD: Tensor) -> Tensor:
        """See `Backend`."""
        return self._decoder.logits(x_BTD)

    def adapter(self, weights: Any) -> Head:
        """Return the module itself."""
        adapter: Head = weights
        return adapter

    def array(self, block: Block) -> Tensor:
        """See `Backend`."""
        return to_tensor(block).to(self.device, self.dtype)

    def wait(self) -> None:
        """See `Backend`."""
        wait(self.device)


def wait(device: torch.device) -> None:
    """Wait until a device has done all work that this thread gave it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class EagerBackend(TorchBackend):
    """Implements `Backend` by running a `Decoder` layer by layer, on cores or a GPU."""

    has_readable_cache: bool = True

    @property
    def least_rows(self) -> int:
        """The largest number of rows to which a linear layer pads."""
        layers = [module for module in self._decoder.modules() if isinstance(module, Linear)]
        return max((layer.row_multiple for layer in layers), default=1)

    def new_text(self) -> KVCache:
        """See `Backend`."""
        return KVCache(self.config, 0, dtype=self.dtype, device=str(self.device))

    def new_branches(self, num_branches: int) -> BranchCache:
        """See `Backend`."""
        return BranchCache(self.config, num_branches, dtype=self.dtype, device=str(self.device))

    def _run_rows(self, x_BTD: Tensor, segment: Segment, positions: Any, mask: Any, cache: Any) -> Tensor:
        if mask is not None:
            mask = torch.as_tensor(mask, device=self.device).to(self.dtype)
        positions = torch.as_tensor(positions, device=self.device)
        return self._decoder.run_layers(x_BTD, *segment, positions=positions, mask=mask, cache=cache)


def arithmetic(dtype: Dtype) -> torch.dtype:
    """Return torch's type of arithmetic for a weight format."""
    return torch.float32 if dtype == "float32" else torch.bfloat16


def torch_threads(device: Device, num_threads: int) -> int:
    """Return torch's number of threads in a lane of `num_threads`: one next to compiled models on the same cores.

    With two, some steps of a head took up to twice as long.
    """
    return 1 if device.has_dynamic_shapes else num_threads


def backend_opener(device: Device, dtype: Dtype) -> Callable[[Decoder], Backend]:
    """Return a function that creates torch's back end for a decoder in `arithmetic(dtype)`.

    For a device of OpenVINO that is torch on the same cores. Raises `ConfigError` if the device is missing or does not
    support this weight format.
    """
    require_device(device.name)
    require_form(device.name, device.name, dtype)
    if device.library != "cuda":
        return EagerBackend
    from runtime.backends.cuda.captured_backend import CudaBackend

    return lambda decoder: CudaBackend(decoder, device=device.name)
