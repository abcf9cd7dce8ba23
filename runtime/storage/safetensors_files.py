"""Reads safetensors files as numpy arrays, checks them, and concatenates them into our parameters.

Files are memory-mapped, so an array that is used unchanged takes no memory of the process. That needs the wanted type,
and for concatenated arrays (such as gate and up) that they follow each other in the file. Weights that this project
trains are stored as int8 matrices [O, I] with one scale per output row, and bfloat16 for everything else.
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
"""The exponent bits of a bfloat16, all ones if it is not finite; numpy's test is slow for this type."""
_AT_ONCE: Final = 1 << 22
"""Numbers checked at once, to limit the memory of the check."""
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
    """Return the named arrays (None: all) of a folder's safetensors files; raise `ModelError` if that fails."""
    arrays: dict[str, NDArray[Any]] = {}
    for path in _weight_files(folder):
        arrays |= arrays_of(path, names)
    return arrays


def read_published(folder: Path, names: Sequence[str], pickled: str) -> tuple[Path, dict[str, NDArray[Any]]]:
    """Return path and arrays of the first existing file among `names` in a folder of published heads.

    `pickled` is the name of a file of pickled weights, which is refused. Raises `ModelFormatError` if no file exists or
    it is damaged.
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
    """Return the bytes of a safetensors file of these arrays."""
    from safetensors.torch import save  # that of safetensors.numpy has no bfloat16

    return save({name: as_tensor(np.ascontiguousarray(array)) for name, array in arrays.items()})


def arrays_of(path: Path, names: set[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the named arrays (None: all) of a memory-mapped file.

    Raises `ModelFormatError` if the file is missing or damaged, or has unknown types.
    """
    try:
        with safe_open(path, framework="np") as file:  # checks the whole header
            wanted = [name for name in file.keys() if names is None or name in names]  # noqa: SIM118
        memory = np.asarray(np.memmap(path, np.uint8, mode="c"))
        first = 8 + int.from_bytes(memory[:8].tobytes(), "little")
        header = parse_json(memory[8:first].tobytes())
        return {name: _mapped(memory[first:], first, header[name]) for name in wanted}
    except (SafetensorError, OSError) as error:
        msg = f"{path}: truncated, damaged, or not a safetensors file, as a pointer of Git LFS ({error}); copy it again"
        raise ModelFormatError(msg) from error


def _mapped(data: NDArray[np.uint8], place: int, entry: dict[str, Any]) -> NDArray[Any]:
    """Return the array of a header's entry; `data` begins at byte `place` of the file."""
    name, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if name not in _TYPES:
        raise SafetensorError(f"numbers of type {name} are not read; known types: {', '.join(_TYPES)}")
    dtype, part = np.dtype(_TYPES[name]), data[start:stop]
    try:
        array: NDArray[Any] = (part.copy() if (place + start) % dtype.itemsize else part).view(dtype).reshape(shape)
        return array
    except (ValueError, OverflowError) as error:  # safetensors accepts an empty array with 2^63 columns
        raise SafetensorError(f"an array of shape {shown(shape)}") from error


def _weight_files(folder: Path) -> Iterator[Path]:
    """Yield the safetensors files of a folder; raise `ModelError` if there are none or their index is damaged.

    A single file takes precedence over an index, as in transformers: a model saved again may leave an old index behind.
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
    """Return the arrays concatenated along their rows, in `dtype`.

    Raises `ModelFormatError`, with `source`, if the result does not have `shape` or finite floating-point numbers.
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
        with np.errstate(over="ignore", invalid="ignore"):  # `finite` checks the result
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
    """Yield a model's parameters; `wanted` names the arrays of `found` that are concatenated into each.

    Without `widens`, a parameter whose arrays have one 16-bit type keeps it even if `dtype` is float32. Raises
    `ModelError` if an array is missing, and the errors of `joined`.
    """
    for ours, theirs in wanted.items():
        missing = [name for name in theirs if name not in found]
        if missing:
            raise ModelError(f"{folder}: the tensor {missing[0]} is missing from its safetensors files")
        parts = {name: found[name] for name in theirs}
        stored, *others = {part.dtype for part in parts.values()}
        is_kept = not widens and not others and stored.itemsize == 2 < dtype.itemsize
        yield ours, joined(parts, shapes[ours], stored if is_kept else dtype, source=str(folder))


def _as_they_lie(parts: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Return the arrays as one view if they follow each other in the same memory, else None."""
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
    """Return the array; raise `ModelFormatError` if a number in it is not finite."""
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
    """Return int8 values [O, I] and float32 scales [O]; the error of an element is at most half its row's scale."""
    matrix = matrix_OI.astype(np.float32)
    scales = np.abs(matrix).max(axis=1) / np.float32(_LARGEST)
    safe = np.where(scales > 0, scales, np.float32(1))
    values = np.round(matrix / safe[:, None]).clip(-_LARGEST, _LARGEST)
    return values.astype(np.int8), safe


def dequantize_rows(values_OI: NDArray[np.int8], scales_O: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the matrix [O, I] that `quantize_rows` approximated."""
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
        return (values_OI.astype(np.float32) * scales_O.astype(np.float32)[:, None]).astype(dtype)


def pack(weights: Mapping[str, Array], *, unquantized: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the arrays to store: int8 `name` and `name.scale` of matrices, else bfloat16 (vectors, `unquantized`)."""
    packed: dict[str, NDArray[Any]] = {}
    for name, weight in weights.items():
        array = as_array(weight)
        if array.ndim == 2 and name not in unquantized:
            packed[name], packed[name + _SCALE] = quantize_rows(array)
        else:
            packed[name] = array.astype(BFLOAT16)
    return packed


def unpack(
    packed: Arrays, shapes: Mapping[str, Sequence[int]], dtype: np.dtype[Any], *, source: str
) -> dict[str, NDArray[Any]]:
    """Return the weights that `pack` stored, in `dtype`; `shapes` must name all of them.

    Raises `ModelFormatError`, with `source`, for a missing, unknown or wrong tensor, or numbers that are not finite.
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
    """Remove and return a tensor; raise `ModelFormatError` if it is missing."""
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
    """Return `joined_parameters` of a published file as torch tensors; the file must have no other tensors.

    Raises `ModelFormatError` for a missing or unknown tensor, and the errors of `joined`.
    """
    found = {name: take(tensors, name, str(path)) for theirs in wanted.values() for name in theirs}
    if tensors:
        raise ModelFormatError(f"{path}: unknown tensor {min(tensors)!r}; expected only {', '.join(found)}")
    return as_tensors(dict(joined_parameters(wanted, shapes, found, dtype, folder=path)))
