"""Safetensors files as numpy arrays: read once for every library, checked, and put together as a model has them.

Files are mapped: an array that is used as it is takes no memory of the process. That holds for arrays of the type asked
for, and for several that follow each other on disk as in one matrix of ours, such as gate and up mostly.
Trained matrices [O, I] lie there as int8 with one scale per output row, everything else of them as bfloat16.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from decoding.errors import ModelError, ModelFormatError, shown
from decoding.files import parse_json, read_bytes
from runtime.arrays import BFLOAT16, Array, aligned_empty, as_array, as_tensor, as_tensors, is_floating
from runtime.models.model_folder import PREFIX

if TYPE_CHECKING:
    import torch


_EXPONENT: Final = np.uint16(0x7F80)
"""Bits of a bfloat16 that are all ones where it is not finite: numpy has no fast way to ask."""
_AT_ONCE: Final = 1 << 22
"""Numbers checked together: the mask of a check takes memory."""
_TYPES: Final = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": BFLOAT16,
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    **{f"{kind}{8 * size}": np.dtype(f"{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
    "BOOL": np.dtype(bool),
}


def read_arrays(folder: Path, names: set[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the named arrays (None: all) of a folder's safetensors files; raise `ModelError` if it cannot."""
    arrays: dict[str, NDArray[Any]] = {}
    for path in _weight_files(folder):
        arrays |= arrays_of(path, names)
    return arrays


def read_published(folder: Path, names: Sequence[str], pickled: str) -> tuple[Path, dict[str, NDArray[Any]]]:
    """Return the path and the arrays of the first of these files in a folder of published heads.

    `pickled` names weights in a form that is not read. Raises `ModelFormatError` for no such file, or a damaged one.
    """
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None and (folder / pickled).is_file():
        raise ModelFormatError(
            f"{folder / pickled}: pickled weights can run code and are not read; convert them, if you trust them: "
            f'safetensors.torch.save_file(torch.load("{pickled}", weights_only=True), "{names[0]}")'
        )
    if path is None:
        raise ModelFormatError(f"{folder}: holds no weights; expected {' or '.join(names)}")
    return path, arrays_of(path)


def content_of(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the content of a file of these arrays."""
    from safetensors.torch import save  # numpy's knows no bfloat16

    return save({name: as_tensor(np.ascontiguousarray(array)) for name, array in arrays.items()})


def arrays_of(path: Path, names: set[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the named arrays (None: all) of a file as parts of one mapping.

    Raises `ModelFormatError` if it is missing, damaged or of unknown types.
    """
    try:
        with safe_open(path, framework="np") as file:  # it looks at the whole header, which is read by itself after it
            wanted = [name for name in file.keys() if names is None or name in names]  # noqa: SIM118
        memory = np.asarray(np.memmap(path, np.uint8, mode="c"))
        first = 8 + int.from_bytes(memory[:8].tobytes(), "little")
        header = parse_json(memory[8:first].tobytes())
        return {name: _mapped(memory[first:], first, header[name]) for name in wanted}
    except (SafetensorError, OSError) as error:
        msg = f"{path}: truncated, damaged, or not a safetensors file ({error}); fetch or copy it again"
        raise ModelFormatError(msg) from error


def _mapped(data: NDArray[np.uint8], place: int, entry: dict[str, Any]) -> NDArray[Any]:
    name, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if name not in _TYPES:
        raise SafetensorError(f"numbers of type {name} are not read; known types: {', '.join(_TYPES)}")
    dtype, part = np.dtype(_TYPES[name]), data[start:stop]
    try:
        array: NDArray[Any] = (part.copy() if (place + start) % dtype.itemsize else part).view(dtype).reshape(shape)
        return array
    except (ValueError, OverflowError) as error:  # no data and 2^63 columns, which the library lets pass
        raise SafetensorError(f"an array of shape {shown(shape)}") from error


def _weight_files(folder: Path) -> Iterator[Path]:
    """Yield the safetensors files of a folder; raises `ModelError` where there are none, or their index is damaged.

    One file goes before an index, as transformers has it: saving a model anew leaves the old shards' index there.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        yield whole
        return
    if index.is_file():
        yield from (folder / shard for shard in _shards(index))
        return
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder}: no *.safetensors file; other weight formats are not read. To time a model of this shape with "
            f"random weights, name {PREFIX}{folder}"
        )
    yield from files


def _shards(index: Path) -> list[str]:
    try:
        names = sorted(set(parse_json(read_bytes(index))["weight_map"].values()))
        if strange := [name for name in names if Path(name).name != name]:
            raise ValueError(f"{strange[0]!r} is not the name of a file in the folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: damaged or truncated ({error!r}); fetch or copy it again") from error
    return names


def joined(parts: Mapping[str, NDArray[Any]], shape: Sequence[int], dtype: np.dtype[Any], *, source: str) -> Any:
    """Return arrays put together row by row, in `dtype`.

    Raises `ModelFormatError`, with `source`, if they do not have `shape`, or one holds what are no finite numbers.
    """
    name, arrays = " + ".join(parts), list(parts.values())
    wrong = next((part for part in arrays if part.shape[1:] != tuple(shape[1:]) or not part.ndim), None)
    found = (sum(map(len, arrays)), *shape[1:]) if wrong is None else wrong.shape
    if found != tuple(shape):
        msg = f"{source}: {name} has shape {list(found)}; config.json and the target ask for {list(shape)}"
        raise ModelFormatError(msg)
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
    widens: bool = True,
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield a model's parameters in `shapes`, each put together from the arrays of `found` that `wanted` names for it.

    Without `widens` those in one type of 16 bits stay in it where float32 is asked for. Raises `ModelError` if one is
    missing, or as in `joined`.
    """
    for ours, theirs in wanted.items():
        missing = [name for name in theirs if name not in found]
        if missing:
            raise ModelError(f"{folder}: the tensor {missing[0]} is missing from its safetensors files")
        parts = {name: found[name] for name in theirs}
        own, *others = {part.dtype for part in parts.values()}
        is_kept = not widens and not others and own.itemsize == 2 < dtype.itemsize
        yield ours, joined(parts, shapes[ours], own if is_kept else dtype, source=str(folder))


def _as_they_lie(parts: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Return arrays row by row if they follow each other in the same memory already, else None."""
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
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def finite(array: NDArray[Any], name: str, *, source: str) -> NDArray[Any]:
    """Return the array itself; raise `ModelFormatError` for a number in it that is not finite."""
    at_once = max(1, _AT_ONCE // max(1, array[0].size)) if array.size else 1
    for start in range(0, len(array) if array.size else 0, at_once):
        part = array[start : start + at_once]
        is_bfloat16 = part.dtype == BFLOAT16
        wrong = (part.view(np.uint16) & _EXPONENT) == _EXPONENT if is_bfloat16 else ~np.isfinite(part)
        if wrong.any():
            raise ModelFormatError(f"{source}: {name} holds numbers that are not finite; fetch, copy or train it again")
    return array


QUANTIZATION_FORMAT: Final = "int8-symmetric-per-row"
_SCALE = ".scale"
_LARGEST = 127

Arrays = Mapping[str, NDArray[Any]]
A = TypeVar("A")


def quantize_rows(matrix_OI: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 values [O, I] and float32 scales [O]; an element's error is at most half its row's scale."""
    matrix = matrix_OI.astype(np.float32)
    scales = np.abs(matrix).max(axis=1) / np.float32(_LARGEST)
    safe = np.where(scales > 0, scales, np.float32(1))
    values = np.round(matrix / safe[:, None]).clip(-_LARGEST, _LARGEST)
    return values.astype(np.int8), safe


def dequantize_rows(values_OI: NDArray[np.int8], scales_O: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the matrix [O, I] that `quantize_rows` approximated."""
    with np.errstate(over="ignore", invalid="ignore"):  # the reader checks the numbers that come out
        return (values_OI.astype(np.float32) * scales_O.astype(np.float32)[:, None]).astype(dtype)


def pack(weights: Mapping[str, Array], *, unquantized: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the arrays to store: `name` and `name.scale` of matrices, bfloat16 of vectors and `unquantized` names."""
    packed: dict[str, NDArray[Any]] = {}
    for name, weight in weights.items():
        own = as_array(weight)
        if own.ndim == 2 and name not in unquantized:
            packed[name], packed[name + _SCALE] = quantize_rows(own)
        else:
            packed[name] = own.astype(BFLOAT16)
    return packed


def unpack(
    packed: Arrays, shapes: Mapping[str, Sequence[int]], dtype: np.dtype[Any], *, source: str
) -> dict[str, NDArray[Any]]:
    """Return the weights that `pack` stored, in `dtype`; `shapes` names every weight there must be, and no other.

    Raises `ModelFormatError`, with `source`, for a missing, unknown or wrong tensor or numbers that are not finite.
    """
    left = dict(packed)
    weights = {}
    for name, shape in shapes.items():
        stored = take(left, name, source)
        if stored.dtype == np.int8:
            scales = take(left, name + _SCALE, source)
            if scales.shape != stored.shape[:1] or stored.ndim != 2 or not is_floating(scales):
                raise ModelFormatError(
                    f"{source}: {name}{_SCALE} is not one floating-point scale for each row of {name}"
                )
            stored = dequantize_rows(stored, scales, dtype)
        weights[name] = joined({name: stored}, shape, dtype, source=source)
    if left:
        msg = f"{source}: unknown tensor {min(left)!r}; expected only {', '.join(shapes)} and their scales"
        raise ModelFormatError(msg)
    return weights


def take(tensors: dict[str, A], name: str, source: str) -> A:
    """Remove and return one of the tensors; raises `ModelFormatError` if it is not there."""
    try:
        return tensors.pop(name)
    except KeyError as error:
        raise ModelFormatError(f"{source}: the tensor {name!r} is missing") from error


def published_parameters(
    wanted: Mapping[str, Sequence[str]],
    shapes: Mapping[str, Sequence[int]],
    tensors: dict[str, NDArray[Any]],
    dtype: np.dtype[Any],
    *,
    path: Path,
) -> "dict[str, torch.Tensor]":
    """Return parameters in `shapes`, each put together from all tensors of a file that `wanted` names for it.

    Raises `ModelFormatError` for a tensor that is missing or unknown, and what `joined` raises.
    """
    found = {name: take(tensors, name, str(path)) for theirs in wanted.values() for name in theirs}
    if tensors:
        raise ModelFormatError(f"{path}: unknown tensor {min(tensors)!r}; expected only {', '.join(found)}")
    return as_tensors(dict(joined_parameters(wanted, shapes, found, dtype, folder=path)))
