"""Safetensors files as numpy arrays.

They are mapped: what is used as it is takes no memory of the process, and processes that read the same file share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from decoding.errors import ModelError, shown
from decoding.files import parse_json, read_bytes
from runtime.arrays import BFLOAT16, as_tensor
from runtime.storage.shape_folder import PREFIX

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
    """The named arrays (all of them without `names`) of every safetensors file of a folder.

    Raises:
        ModelError: no safetensors file, or one that is damaged.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for path in weight_files(folder):
        try:
            arrays |= _mapped(path, names)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: damaged or truncated ({error}); fetch or copy it again") from error
    return arrays


def arrays_in(content: bytes) -> dict[str, NDArray[Any]]:
    """All arrays of a file's content.

    Raises:
        SafetensorError: it is no safetensors file, or has a type of numbers that is not known here.
    """
    return {
        name: _shaped(np.frombuffer(bytearray(view["data"]), _type_of(view["dtype"])), view["shape"])
        for name, view in deserialize(content)  # type: ignore[no-untyped-call]
    }


def content_of(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The file of some arrays."""
    from safetensors.torch import save  # numpy's knows no bfloat16

    return save({name: as_tensor(np.ascontiguousarray(array)) for name, array in arrays.items()})


def _mapped(path: Path, names: set[str] | None) -> dict[str, NDArray[Any]]:
    """Arrays of a file as parts of one mapping of it, so that those that follow each other can be joined.

    Raises:
        SafetensorError: the file is damaged, or has a type of numbers that is not known here.
    """
    with safe_open(path, framework="np") as file:  # it looks at the whole header, which is read by itself after it
        wanted = [name for name in file.keys() if names is None or name in names]  # noqa: SIM118
    memory = np.asarray(np.memmap(path, np.uint8, mode="c"))
    first = 8 + int.from_bytes(memory[:8].tobytes(), "little")
    header = parse_json(memory[8:first].tobytes())

    def mapped(entry: dict[str, Any]) -> NDArray[Any]:
        dtype, (start, stop) = _type_of(entry["dtype"]), entry["data_offsets"]
        part = memory[first + start : first + stop]
        is_aligned = not (first + start) % dtype.itemsize
        return _shaped((part if is_aligned else part.copy()).view(dtype), entry["shape"])

    return {name: mapped(header[name]) for name in wanted}


def _shaped(array: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as error:  # no data and 2^63 columns, which the library lets pass
        raise SafetensorError(f"an array of shape {shown(shape)}") from error


def _type_of(name: str) -> np.dtype[Any]:
    if name not in _TYPES:
        raise SafetensorError(f"numbers of type {name} are not read; known types: {', '.join(_TYPES)}")
    return np.dtype(_TYPES[name])  # type: ignore[no-any-return]


def weight_files(folder: Path) -> Iterator[Path]:
    """The safetensors files of a folder; raises `ModelError` where there are none, or their index is damaged."""
    index = folder / "model.safetensors.index.json"
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
    """The names of all files that an index spreads the tensors over."""
    try:
        names = sorted(set(parse_json(read_bytes(index))["weight_map"].values()))
        if strange := [name for name in names if Path(name).name != name]:
            msg = f"{strange[0]!r} is not the name of a file in the folder"
            raise ValueError(msg)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: damaged or truncated ({error!r}); fetch or copy it again") from error
    return names
