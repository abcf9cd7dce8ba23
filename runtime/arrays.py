"""Functions on arrays of numpy or of torch: compiled lanes use numpy's, all other lanes torch's.

Importing torch takes longer than everything else that a compiled lane does before it is ready. So decoding is written
for both libraries: by indexing, `reshape` and `tolist`, which both have, and by the functions below. Hidden states of
compiled lanes are float32 in numpy, whatever type their graphs compute in.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Any
"""A tensor or a numpy array. All arrays of a lane are of one kind, which depends on how its models were loaded."""

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
FLOAT32: Final = np.dtype(np.float32)
_FLOATS: Final = {np.dtype(kind) for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)}

_ALIGNMENT: Final = 64
"""Alignment of matrices in bytes; without it, torch's products in bfloat16 were a fifth slower (AVX-512)."""

P = ParamSpec("P")
R = TypeVar("R")


def inference(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function run in torch's inference mode, if torch has been imported and the mode is not on already."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        torch = sys.modules.get("torch")
        if torch is None or torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode():
            return function(*args, **kwargs)

    return run


def is_tensor(array: Array) -> bool:
    """Return whether an array is a tensor of torch."""
    return not isinstance(array, np.ndarray)


def is_on_host(array: Array) -> bool:
    """Return whether an array is in memory of the host."""
    return not is_tensor(array) or bool(array.is_cpu)


def on_host(array: Array) -> Array:
    """Return an array in memory of the host."""
    return array.cpu() if is_tensor(array) else array


def concatenated(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Concatenate arrays along an axis."""
    if is_tensor(arrays[0]):
        import torch

        return torch.cat(list(arrays), dim=axis)
    return np.concatenate(arrays, axis)


def stacked(arrays: Sequence[Array], axis: int) -> Array:
    """Stack arrays along a new axis."""
    if is_tensor(arrays[0]):
        import torch

        return torch.stack(list(arrays), dim=axis)
    return np.stack(arrays, axis)


def zeros(like: Array, *shape: int) -> Array:
    """Return zeros of a shape, with the type and device of the array `like`."""
    return like.new_zeros(shape) if is_tensor(like) else np.zeros(shape, like.dtype)


def wide(array: Array) -> Array:
    """Return an array in float32."""
    return array.float() if is_tensor(array) else array.astype(np.float32, copy=False)


def normalise_features(hidden_TED: Array, eps: float) -> Array:
    """Return the features of E target layers for a drafter, [..., T, E * D]: each state divided by its RMS."""
    *rows, num_layers, size = hidden_TED.shape
    if is_tensor(hidden_TED):
        from torch.nn import functional as F

        unit: Array = F.rms_norm(hidden_TED, (size,), hidden_TED.new_ones(size), eps)
    else:
        unit = rms_norm(hidden_TED, None, eps)
    return unit.reshape(*rows, num_layers * size)


def rms_norm(x: NDArray[np.float32], weight: NDArray[np.float32] | None, eps: float) -> NDArray[np.float32]:
    """Apply a root-mean-square norm over the last dimension, in float32; a row's bits do not depend on other rows."""
    unit = x * (1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)))
    return unit if weight is None else unit * weight  # type: ignore[no-any-return]


def log_shares(logits_RV: Array, ids_RK: Array) -> Array:
    """Return the log-probabilities [R, K] of some ids of each row of logits in float32."""
    if is_tensor(logits_RV):
        return logits_RV.gather(-1, ids_RK) - logits_RV.logsumexp(dim=-1, keepdim=True)
    most_R1 = logits_RV.max(axis=-1, keepdims=True)
    total_R1 = np.log(np.exp(logits_RV - most_R1).sum(axis=-1, keepdims=True)) + most_R1
    return np.take_along_axis(logits_RV, ids_RK, -1) - total_R1


def as_array(array: Array) -> NDArray[Any]:
    """Return a tensor as a numpy array, which shares its memory if that is on the host; bfloat16 is of `ml_dtypes`."""
    if not is_tensor(array):
        return array  # type: ignore[no-any-return]
    import torch

    tensor = array.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


def as_tensor(array: NDArray[Any]) -> "torch.Tensor":
    """Return a numpy array as a tensor, which shares its memory."""
    import torch

    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def numpy_type(dtype: Any) -> np.dtype[Any]:
    """Return the numpy type of the same name as a type of numpy or torch."""
    name = str(dtype).removeprefix("torch.")
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def as_tensors(arrays: Mapping[str, NDArray[Any]]) -> "dict[str, torch.Tensor]":
    """Return arrays as tensors, which share their memory unless products would be slow in it."""

    def is_slow(array: NDArray[Any]) -> bool:
        return array.ndim >= 2 and bool(array.ctypes.data % _ALIGNMENT or not array.flags.c_contiguous)

    def aligned(array: NDArray[Any]) -> NDArray[Any]:
        copy = aligned_empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    return {name: as_tensor(aligned(array) if is_slow(array) else array) for name, array in arrays.items()}


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialised array, aligned so that torch computes with it at full speed."""
    num_bytes = prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + num_bytes].view(dtype).reshape(shape)


def is_floating(array: NDArray[Any]) -> bool:
    """Return whether an array holds floating-point numbers."""
    return array.dtype in _FLOATS or array.dtype.kind == "f"
