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
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

NASTY_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(0.5, -0.5, 1e-300, 1e-12, 1e12, 1e300, -1e300, float("inf"), float("-inf"), float("nan")),
    *("", "x", "nan", "1e3", "x" * 20_000, "\ud800", "a\0b", "../../x", "/", "é\u2028", "2026-02-30"),
    *("(a+)+$", "1.5", [{}] * 2000, {f"x{number}": 0 for number in range(2000)}),
    *([], {}, [[]], [None], ["x"] * 2000, list(range(3000)), {"x": {"y": [1]}}, {"": ""}),
)
NASTY_TEXTS: Final = (
    *(
        "\0",
        "\x85",
        "\ufeff",
        "\\ud800",
        "[" * 3000,
        "{a: " * 3000,
        "- " * 3000,
        "&a [*a]",
        "*a",
        "!!int x",
        "!!binary x",
    ),
    *(
        "!!python/object:os.system {}",
        "2026-02-30",
        "9" * 6000,
        "1:" * 500 + "1",
        ".inf",
        "NaN",
        "1e999",
        "_",
        "? [a]\n",
    ),
    *("a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "<<: {a: 1}", "%YAML 9.9\n---\n", "---\n", "\t", "'", '"', "\n\n"),
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
    if path.suffix == ".csv":
        return _bytes
    if path.suffix == ".safetensors":
        return _tensors
    if path.suffix == ".npz":
        return _arrays
    if path.suffix == ".gz":
        return _zipped
    return _lines if path.suffix == ".jsonl" else _values


def _bytes(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    place = random.randrange(len(content) + 1)
    stop = min(len(content), place + random.choice((1, 2, 8, 100, 10_000)))
    kind = random.randrange(6)
    if kind == 0:
        del content[place:]
    elif kind == 1:
        del content[place:stop]
    elif kind == 2:
        content[place:place] = content[place:stop]
    elif kind == 3:
        content[place:stop] = random.randbytes(stop - place)
    elif kind == 4 and place < len(content):
        content[place] ^= 1 << random.randrange(8)
    else:
        content[place:place] = random.choice(NASTY_TEXTS).encode()
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
    kind = random.randrange(8)
    if kind == 0:
        lines.insert(place, lines[random.randrange(len(lines))])
    elif kind == 1:
        lines[place] = lines[place][: random.randrange(len(lines[place]) + 1)]
    else:
        lines[place] = _changed_text(lines[place], random).decode(errors="replace")
    path.write_bytes("\n".join(lines).encode())


def _changed_text(text: str, random: Random, *, is_yaml: bool = False) -> bytes:
    """A text of JSON or YAML with some of its values changed; any other text as it is."""
    try:
        data = yaml.load(text, Loader=yaml.CSafeLoader) if is_yaml else json.loads(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return text.encode(errors="replace")
    for _ in range(random.choice((1, 1, 2, 4))):
        data = _changed(data, random)
    if is_yaml:
        try:
            return yaml.dump(data, Dumper=yaml.CSafeDumper, allow_unicode=True).encode()
        except (ValueError, yaml.YAMLError):
            return text.encode()
    try:
        return json.dumps(data).encode()
    except ValueError:  # an integer of many digits
        return text.encode()


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
    name = random.choice(sorted(tensors))
    kind = random.randrange(10)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[name + "x"] = tensors.pop(name)
    elif kind == 2:
        tensors["x"] = torch.zeros(random.choice((0, 1, 5)))
    else:
        tensors[name] = random.choice((_reshaped, _retyped, _strange))(tensors[name], random)
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)


def _reshaped(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    shorter = tensor[: random.randrange(len(tensor) + 1)] if tensor.dim() else tensor
    return random.choice((tensor.flatten(), tensor.reshape(1, *tensor.shape), shorter))


def _retyped(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    types = (torch.int32, torch.int64, torch.uint8, torch.bool, torch.float16, torch.float64, torch.int8)
    return tensor.to(random.choice(types))


def _strange(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    """With one number that is strange, for its type."""
    flat = tensor.flatten().clone()
    number = random.choice((0, -1, 1e30, float("nan"), float("inf")) if flat.is_floating_point() else (0, -1, 99))
    if len(flat):
        flat[random.randrange(len(flat))] = number
    return flat.reshape(tensor.shape)


def _arrays(path: Path, random: Random) -> None:
    try:
        with np.load(io.BytesIO(path.read_bytes())) as found:
            arrays = dict(found)
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return
    name = random.choice(["header", *sorted(arrays)])
    kind = random.randrange(8)
    if name == "header":
        text = _changed_text(arrays[name].tobytes().decode(errors="replace"), random)
        arrays[name] = np.frombuffer(text, dtype=np.uint8)
    elif kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[name] = arrays[name].astype(random.choice(("i8", "f4", "u1", "i2", "U4", "?", "c8", "M8[s]", "S3")))
    elif kind == 2:
        arrays[name] = np.zeros(arrays[name].shape, dtype=[("a", "i4"), ("b", "f4")])
    elif kind == 3:
        arrays[name] = arrays[name].reshape(random.choice(((-1,), (-1, 1), (1, -1, 1))))
    elif kind == 4:
        arrays[name] = arrays[name][: random.randrange(len(arrays[name]) + 1)]
    elif kind == 5:
        arrays[name] = arrays[name].T
    elif arrays[name].size:
        flat = arrays[name].flatten()
        flat[random.randrange(len(flat))] = random.choice((-1, 0, 1, 99, 2**31 - 1, -(2**31)))
        arrays[name] = flat.reshape(arrays[name].shape)
    content = io.BytesIO()
    np.savez(content, **arrays)
    path.write_bytes(content.getvalue())


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
