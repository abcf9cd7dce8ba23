"""Arrays of a file put together as a model has them: in its type, of the right shape, and all numbers finite.

What can be used as it is on disk stays there: an array of the type asked for, or several that follow each other on disk
as they do in one matrix of ours, such as gate and up of an MLP mostly; queries, keys and values seldom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ModelError, ModelFormatError
from runtime.arrays import BFLOAT16, aligned_empty, is_floating

_EXPONENT: Final = np.uint16(0x7F80)
"""Bits of a bfloat16 that are all ones where it is not finite: numpy has no fast way to ask."""
_AT_ONCE: Final = 1 << 22
"""Numbers looked at together: what is noted of them takes memory."""


def joined(parts: Mapping[str, NDArray[Any]], shape: Sequence[int], dtype: np.dtype[Any], *, source: str) -> Any:
    """Arrays by name, put together row by row, in `dtype`.

    Raises:
        ModelError: together they do not have `shape`, or one holds no numbers, or not finite ones; `source` names where
            they are from.
    """
    name, arrays = " + ".join(parts), list(parts.values())
    wrong = next((part for part in arrays if part.shape[1:] != tuple(shape[1:]) or not part.ndim), None)
    found = (sum(map(len, arrays)), *shape[1:]) if wrong is None else wrong.shape
    if found != tuple(shape):
        raise ModelError(f"{source}: {name} has shape {list(found)}; config.json and the target ask for {list(shape)}")
    if strange := [part for part in arrays if not is_floating(part)]:
        raise ModelFormatError(f"{source}: {name} is stored as {strange[0].dtype}; expected a floating-point type")
    whole = _as_they_lie(arrays)
    if whole is None or whole.dtype != dtype:
        whole = aligned_empty(shape, dtype)
        stops = accumulate(map(len, arrays))
        with np.errstate(over="ignore", invalid="ignore"):  # what comes out is looked at
            for part, stop in zip(arrays, stops, strict=True):
                whole[stop - len(part) : stop] = part
    return finite(whole, name, source=source)


def joined_parameters(
    wanted: Mapping[str, Sequence[str]],
    shapes: Mapping[str, Sequence[int]],
    found: Mapping[str, NDArray[Any]],
    dtype: np.dtype[Any],
    *,
    folder: Path,
) -> dict[str, NDArray[Any]]:
    """Parameters of a model, each of the arrays that go into it.

    Args:
        wanted: for each parameter the names of those arrays, in their order.
        shapes: of the parameters.
        found: arrays by name.
        dtype: of the parameters.
        folder: where the arrays are from.

    Raises:
        ModelError: one is missing, or as in `joined`.
    """
    parameters = {}
    for ours, theirs in wanted.items():
        missing = [name for name in theirs if name not in found]
        if missing:
            raise ModelError(f"{folder}: the tensor {missing[0]} is missing from its safetensors files")
        parts = {name: found[name] for name in theirs}
        parameters[ours] = joined(parts, shapes[ours], dtype, source=str(folder))
    return parameters


def _as_they_lie(parts: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Arrays row by row where they follow each other in the same memory already."""
    first = parts[0]
    starts = accumulate((part.nbytes for part in parts[:-1]), initial=_address(first))
    for part, start in zip(parts, starts, strict=True):
        is_next = _owner(part) is _owner(first) and _address(part) == start
        if not (is_next and part.dtype == first.dtype and part.flags.c_contiguous):
            return None
    return np.lib.stride_tricks.as_strided(first, (sum(map(len, parts)), *first.shape[1:]), first.strides)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _owner(array: NDArray[Any]) -> Any:
    """What holds the memory that an array is a part of."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def finite(array: NDArray[Any], name: str, *, source: str) -> NDArray[Any]:
    """The array itself, every number of which was looked at once.

    Raises:
        ModelFormatError: a number in it is not finite: whatever is computed with it would be nonsense.
    """
    at_once = max(1, _AT_ONCE // max(1, array[0].size)) if array.size else 1
    for start in range(0, len(array) if array.size else 0, at_once):
        if not _is_finite(array[start : start + at_once]):
            msg = f"{source}: {name} holds numbers that are not finite; fetch, copy or train it again"
            raise ModelFormatError(msg)
    return array


def _is_finite(part: NDArray[Any]) -> bool:
    if part.dtype == BFLOAT16:
        return not bool(((part.view(np.uint16) & _EXPONENT) == _EXPONENT).any())
    return bool(np.isfinite(part).all())
