"""Damage to files, drawn from a seed: what a slip of the hand, a cut cable or bad will make of a sound file.

Bytes of any file; values of JSON and YAML, JSON Lines and gzipped ones too; tensors and arrays, with checksums that are
made right again, so that more than the checksum is tried.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

NASTY_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, 1, -1, 2, 64, 2**63, -(2**63), 10**400, 0.5, -0.5, 1e-300, 1e12, 1e300),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "nan", "x" * 20_000, "\ud800", "a\0b", "../../x"),
    *("2026-02-30", "(a+)+$", [], {}, [[]], [None], ["x"] * 2000, [{}] * 2000, {"x": {"y": [1]}}, {"": ""}),
)
_TEXTS = "\0 \x85 \ufeff \\ud800 &a[*a] *a !!int!x !!python/object:os.system{} 2026-02-30 .inf NaN 1e999 --- ' \""
NASTY_TEXTS: Final = (
    *_TEXTS.split(" "),
    "[" * 3000,
    "{a: " * 3000,
    "- " * 3000,
    "9" * 6000,
    "<<: {a: 1}",
    "\t",
    "\n\n",
)


def damage(folder: Path, names: list[str], random: Random) -> None:
    """Change one file of a folder, or two."""
    for _ in range(random.choice((1, 1, 1, 2))):
        path = folder / random.choice(names)
        if not path.is_file():
            continue
        change = random.choice((_bytes, *[_by_content(path)] * 4))
        change(path, random)
        if random.random() < 0.8:
            _make_checksum_right(folder)


def _by_content(path: Path) -> Callable[[Path, Random], None]:
    known = {".csv": _bytes, ".txt": _bytes, ".gz": _zipped, ".jsonl": _lines}
    known |= {".safetensors": _tensors, ".npz": _arrays}
    return known.get(path.suffix, _values)


def _bytes(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    place = random.randrange(len(content) + 1)
    stop = min(len(content), place + random.choice((1, 8, 100, 10_000)))
    twice, noise, text = content[place:stop] * 2, random.randbytes(stop - place), random.choice(NASTY_TEXTS).encode()
    content[place : random.choice((len(content), stop))] = random.choice((b"", twice, noise, text))
    path.write_bytes(content)


def _values(path: Path, random: Random) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    path.write_bytes(_changed_text(text, random, is_yaml=path.suffix == ".yaml"))


def _zipped(path: Path, random: Random) -> None:
    try:
        text = gzip.decompress(path.read_bytes()).decode(errors="replace")
    except (OSError, EOFError, ValueError, zlib.error):
        return
    lines = text.split("\n") if path.suffixes[0] == ".jsonl" else [text]
    place = random.randrange(len(lines))
    lines[place] = _changed_text(lines[place], random).decode(errors="replace")
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 1))


def _lines(path: Path, random: Random) -> None:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    place = random.randrange(len(lines))
    changed = _changed_text(lines[place], random).decode(errors="replace")
    lines[place] = random.choice((random.choice(lines), lines[place][: len(lines[place]) // 2], changed, changed))
    path.write_bytes("\n".join(lines).encode())


def _changed_text(text: str, random: Random, *, is_yaml: bool = False) -> bytes:
    """A text of JSON or YAML with some of its values changed; any other text as it is."""
    try:
        data = yaml.load(text, Loader=yaml.CSafeLoader) if is_yaml else json.loads(text)
        for _ in range(random.choice((1, 1, 2, 4))):
            data = _changed(data, random)
        changed = yaml.dump(data, Dumper=yaml.CSafeDumper, allow_unicode=True) if is_yaml else json.dumps(data)
        return changed.encode()
    except (ValueError, RecursionError, yaml.YAMLError):
        return text.encode(errors="replace")


def _changed(data: Any, random: Random) -> Any:
    """A value with one value inside it replaced, removed, repeated, renamed or scaled."""
    if not isinstance(data, dict | list) or not data or random.random() < 0.02:
        return _replaced(data, random)
    keys = list(data) if isinstance(data, dict) else list(range(len(data)))
    key = random.choice(keys)
    if random.random() < 0.75 and isinstance(data[key], dict | list) and data[key]:
        data[key] = _changed(data[key], random)
        return data
    kind = random.randrange(10)
    if kind == 0:
        del data[key]
    elif kind == 1 and isinstance(data, dict):
        data[random.choice(("x", "", f"{key}x"))] = data.pop(key)
    elif kind == 1:
        data.insert(key, data[key])
    elif kind == 2:
        data[key] = data[random.choice(keys)]
    else:
        data[key] = _replaced(data[key], random)
    return data


def _replaced(value: Any, random: Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        try:
            return value * random.choice((-1, 0, 2, 1000, 1e-6, 1e9, 1e15, 1e-300)) + random.choice((0, 0, 1, -1))
        except OverflowError:
            return 0
    return deepcopy(random.choice(NASTY_VALUES))


def _tensors(path: Path, random: Random) -> None:
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError):
        return
    name, kind = random.choice(sorted(tensors)), random.randrange(6)
    old = tensors.pop(name)
    if kind:
        new = _strange((old.float() if old.is_floating_point() else old).numpy(), random, ("i4", "u1", "?", "f2", "f8"))
        tensors[name + "x" * (kind == 1)] = torch.from_numpy(new).clone()
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)


def _arrays(path: Path, random: Random) -> None:
    try:
        with np.load(io.BytesIO(path.read_bytes())) as found:
            arrays = dict(found)
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return
    name, kind = random.choice(["header", *sorted(arrays)]), random.randrange(8)
    old = arrays.pop(name)
    if name == "header":
        arrays[name] = np.frombuffer(_changed_text(old.tobytes().decode(errors="replace"), random), dtype=np.uint8)
    elif kind == 1:
        arrays[name] = np.zeros(old.shape, dtype=[("a", "i4"), ("b", "f4")])
    elif kind:
        arrays[name] = _strange(old, random, ("i8", "f4", "u1", "i2", "U4", "?", "c8", "M8[s]", "S3"))
    content = io.BytesIO()
    np.savez(content, **arrays)
    path.write_bytes(content.getvalue())


def _strange(array: NDArray[Any], random: Random, types: Sequence[str]) -> NDArray[Any]:
    """An array of another shape or type, or with one number that is strange for its type."""
    kind, half = random.randrange(6), array[: len(array) // 2] if array.ndim else array
    if kind < 4:
        return (array.flatten(), array[None], array.T, half)[kind]
    if kind == 4:
        return array.astype(random.choice(types))
    flat = array.flatten()
    if flat.size:
        strange = (0, -1, 1e30, float("nan"), float("inf")) if flat.dtype.kind == "f" else (0, 1, 99)
        flat[random.randrange(flat.size)] = random.choice(strange)
    return flat.reshape(array.shape)


def _make_checksum_right(folder: Path) -> None:
    config, weights = folder / "config.json", folder / "model.safetensors"
    if not (config.is_file() and weights.is_file()):
        return
    try:
        data = json.loads(config.read_bytes())
    except (ValueError, RecursionError):
        return
    if isinstance(data, dict) and "weights_sha256" in data:
        data["weights_sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
        config.write_text(json.dumps(data))
