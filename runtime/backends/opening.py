"""From a lane's device and the form of its weights to its back end."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.backends.backend import Backend
from runtime.backends.devices import require_device, require_form
from runtime.backends.eager import EagerBackend
from runtime.backends.lane_device import Device, Dtype
from runtime.models.decoder import Decoder


def arithmetic(dtype: Dtype) -> torch.dtype:
    """Return what weights of a form are computed with."""
    return torch.float32 if dtype == "float32" else torch.bfloat16


def torch_threads(device: Device, num_threads: int) -> int:
    """Return the threads that torch takes in a lane of so many on a device.

    One next to compiled models on the same cores: a step of a head took now its time and now twice that with two.
    """
    return 1 if device.has_open_sizes else num_threads


def backend_opener(device: Device, dtype: Dtype, *, num_threads: int) -> Callable[[Decoder], Backend]:
    """Return what makes a back end of a decoder in `arithmetic(dtype)`; raise `ConfigError` for a wrong device."""
    require_device(device.name)
    require_form(device.name, device.name, dtype)
    if device.library == "torch":
        return EagerBackend
    if device.library == "cuda":
        from runtime.backends.cuda.captured_backend import CudaBackend

        return lambda decoder: CudaBackend(decoder, device=device.name)
    from runtime.backends.openvino.torch_backend import OpenVinoBackend  # a library that eager lanes need not load

    return lambda decoder: OpenVinoBackend(decoder, device=device, form=dtype, num_threads=num_threads)
