"""Encodes values as JSON and arrays: named tuples and dataclasses field by field, and the values in them.

The expected type determines how a value is read, so messages hold only data. Arrays are `Block`s that follow the JSON
in order: distributions of a window, an exit's candidates, and features, which the driver passes on as blocks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from decoding.messages import Candidates, ExitSignal
from decoding.schedule import Schedule
from runtime.wire.channel import Block, to_block


class Written(NamedTuple):
    """An encoded value: JSON, and the arrays that follow it."""

    json: Any
    blocks: list[Block]


def write(value: object) -> Written:
    """Return a value encoded."""
    blocks: list[Block] = []
    return Written(_write(value, blocks), blocks)


def read(kind: Any, json: Any, blocks: Sequence[Block]) -> Any:
    """Return the value that `write` encoded; `kind` is its type or type hint."""
    return _read(kind, json, iter(blocks))


def read_fields(kinds: Mapping[str, Any], json: Mapping[str, Any], blocks: Iterable[Block]) -> dict[str, Any]:
    """Return the dictionary that `write` encoded; `kinds` are the types of its values by name."""
    left = iter(blocks)
    return {name: _read(kinds[name], each, left) for name, each in json.items()}


def _write(value: Any, blocks: list[Block]) -> Any:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {name: _write(each, blocks) for name, each in value.items()}
    if isinstance(value, Path | Schedule):
        return str(value) if isinstance(value, Path) else value.model_dump(mode="json")
    if arrays := _arrays(value):
        blocks += arrays
        return {"features": _write(value.features, blocks)} if isinstance(value, ExitSignal) else True
    if type(value) in (tuple, list):
        # a list whose first item is plain is taken as it is, since lists of token ids are long
        return value if value and isinstance(value[0], _PLAIN) else [_write(each, blocks) for each in value]
    names = [field.name for field in fields(value)] if is_dataclass(value) else value._fields
    return {name: _write(getattr(value, name), blocks) for name in names}


def _read(kind: Any, found: Any, blocks: Iterator[Block]) -> Any:
    if found is None or kind is int:
        return found
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]
    if kind in (Any, Block):
        return next(blocks)
    if kind in (Candidates, ExitSignal):
        arrays = _values(next(blocks)), _values(next(blocks))
        return Candidates(*arrays) if kind is Candidates else ExitSignal(*arrays, _read(Any, found["features"], blocks))
    if get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        inner = get_args(kind)[0]
        return tuple(found) if inner is int else tuple(_read(inner, each, blocks) for each in found)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return kind(**read_fields(_hints(kind), found, blocks))
    return _PARSED[kind](found) if kind in _PARSED else found


_PLAIN: Final = (int, float, str)
_PARSED: Final[Mapping[Any, Callable[[Any], Any]]] = {Path: Path, Schedule: Schedule.model_validate}
_hints = lru_cache(get_type_hints)


def _arrays(value: Any) -> Sequence[Block]:
    if isinstance(value, Candidates):
        return _array(value.tokens, "int32"), _array(value.probabilities, "float64")
    if isinstance(value, ExitSignal):
        return _array(value.candidates, "int32"), _array(value.log_probs, "float32")
    if isinstance(value, Block):
        return (value,)
    return (to_block(value),) if hasattr(value, "dtype") else ()


def _array(values: Sequence[Any], dtype: str) -> Block:
    array = np.array(values, dtype)
    return Block(dtype, array.shape, array.tobytes())


def _values(block: Block) -> tuple[Any, ...]:
    values = np.frombuffer(block.data, block.dtype).reshape(block.shape).tolist()
    return tuple(map(tuple, values)) if len(block.shape) == 2 else tuple(values)
