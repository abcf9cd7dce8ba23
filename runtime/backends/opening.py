"""From a lane's device and the form of its weights to its back end."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.backends.backend import Backend
from runtime.backends.devices import CUDA, EAGER, OPENVINO, backend_of, require_device, require_form
from runtime.backends.eager import EagerBackend
from runtime.models.decoder import Decoder
from runtime.wire.operations import Dtype


def arithmetic(dtype: Dtype) -> torch.dtype:
    """What weights of a form are computed with."""
    return torch.float32 if dtype == "float32" else torch.bfloat16


def torch_threads(device: str, num_threads: int) -> int:
    """Threads that torch takes in a lane of so many on a device.

    One next to graphs on the same cores: their threads wait for work on the core that torch's second one wants, and a
    step of a head took now its time and now twice that, no less on average than with one.
    """
    return 1 if backend_of(device) == f"{OPENVINO}CPU" else num_threads


def backend_opener(device: str, dtype: Dtype, *, num_threads: int) -> Callable[[Decoder], Backend]:
    """What makes a back end of a decoder whose weights are loaded in `arithmetic(dtype)`.

    Raises:
        ConfigError: the device is not there, or does not compute with this form.
    """
    require_device(device)
    require_form(device, device, dtype)
    if device == EAGER:
        return EagerBackend
    if device.startswith(CUDA):
        from runtime.backends.cuda.captured_backend import CudaBackend

        return lambda decoder: CudaBackend(decoder, device=device)
    from runtime.backends.openvino.torch_backend import OpenVinoBackend  # a library that eager lanes need not load

    own = device.removeprefix(OPENVINO)
    return lambda decoder: OpenVinoBackend(decoder, device=own, form=dtype, num_threads=num_threads)
