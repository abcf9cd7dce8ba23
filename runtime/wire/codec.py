"""Values as JSON and arrays, by their type: named tuples and dataclasses field by field, and whatever they hold.

A type determines how its values are read, so nothing but data crosses. Most is JSON as it is. Arrays are `Block`s that
follow the JSON in the order they were written: what of a window was sampled from, the exit's candidates, and the
features of `decoding.messages`, which are opaque there and stay blocks outside of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from decoding.messages import Candidates, ExitSignal
from decoding.schedule import Schedule
from runtime.wire.channel import Block


class Codec(NamedTuple):
    """How values of a type cross.

    Attributes:
        write: what JSON holds of a value; its arrays are appended to the list.
        read: the value of that, and of the arrays, which are taken in the same order.
    """

    write: Callable[[Any, list[Block]], Any]
    read: Callable[[Any, Iterator[Block]], Any]


def codec_of(kind: Any) -> Codec:
    """The codec of a type or of a type hint."""
    if kind not in _CODECS:
        _CODECS[kind] = _made(kind)
    return _CODECS[kind]


def _made(kind: Any) -> Codec:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        inner = [argument for argument in arguments if argument is not NoneType]
        return _optional(codec_of(inner[0])) if len(inner) == 1 else _PLAIN
    if origin is tuple and arguments[1:] == (...,):
        return _tuple(codec_of(arguments[0]))
    if is_dataclass(kind):
        return _record(kind, [field.name for field in fields(kind)])
    return _record(kind, kind._fields) if hasattr(kind, "_fields") else _PLAIN


def _record(kind: Any, names: Sequence[str]) -> Codec:
    hints = get_type_hints(kind)
    codecs = [(name, codec_of(hints[name])) for name in names]

    def write(value: Any, blocks: list[Block]) -> dict[str, Any]:
        return {name: codec.write(getattr(value, name), blocks) for name, codec in codecs}

    def read(found: Any, blocks: Iterator[Block]) -> Any:
        return kind(**{name: codec.read(found[name], blocks) for name, codec in codecs})

    return Codec(write, read)


def _optional(inner: Codec) -> Codec:
    return Codec(
        lambda value, blocks: None if value is None else inner.write(value, blocks),
        lambda found, blocks: None if found is None else inner.read(found, blocks),
    )


def _tuple(inner: Codec) -> Codec:
    if inner is _PLAIN:
        return Codec(_PLAIN.write, lambda found, _: tuple(found))
    return Codec(
        lambda values, blocks: [inner.write(value, blocks) for value in values],
        lambda found, blocks: tuple(inner.read(value, blocks) for value in found),
    )


def _write_block(block: Block, blocks: list[Block]) -> bool:
    blocks.append(block)
    return True


def _write_candidates(values: Sequence[Candidates], blocks: list[Block]) -> bool:
    if values:
        blocks.append(_array([each.tokens for each in values], "int32"))
        blocks.append(_array([each.probabilities for each in values], "float64"))
    return bool(values)


def _read_candidates(found: bool, blocks: Iterator[Block]) -> tuple[Candidates, ...]:  # noqa: FBT001
    if not found:
        return ()
    return tuple(Candidates(*row) for row in zip(_rows(next(blocks)), _rows(next(blocks)), strict=True))


def _write_signal(signal: ExitSignal, blocks: list[Block]) -> Any:
    blocks += _array(signal.candidates, "int32"), _array(signal.log_probs, "float32")
    return _FEATURES.write(signal.features, blocks)


def _read_signal(found: Any, blocks: Iterator[Block]) -> ExitSignal:
    return ExitSignal(_rows(next(blocks)), _rows(next(blocks)), _FEATURES.read(found, blocks))


def _array(rows: Sequence[Sequence[float]], dtype: str) -> Block:
    array = np.array(rows, dtype)
    return Block(dtype, array.shape, array.tobytes())


def _rows(block: Block) -> tuple[tuple[Any, ...], ...]:
    array = np.frombuffer(block.data, block.dtype).reshape(block.shape)
    return tuple(map(tuple, array.tolist()))


_PLAIN: Final = Codec(lambda value, _: value, lambda found, _: found)
_BLOCK: Final = Codec(_write_block, lambda _, blocks: next(blocks))
_FEATURES: Final = _optional(_BLOCK)
_CODECS: Final[dict[Any, Codec]] = {
    Any: _FEATURES,
    object: _FEATURES,
    Block: _BLOCK,
    ExitSignal: Codec(_write_signal, _read_signal),
    Path: Codec(lambda path, _: str(path), lambda found, _: Path(found)),
    Schedule: Codec(
        lambda schedule, _: schedule.model_dump(mode="json"), lambda found, _: Schedule.model_validate(found)
    ),
    tuple[Candidates, ...]: Codec(_write_candidates, _read_candidates),
}

T = TypeVar("T")


class Written(NamedTuple):
    """A value on its way: JSON, and the arrays that follow it."""

    json: Any
    blocks: list[Block]


def write(value: object, kind: Any = None) -> Written:
    """A value as the codec of its type, or of the hint given, writes it."""
    blocks: list[Block] = []
    return Written(codec_of(kind or type(value)).write(value, blocks), blocks)


def read(kind: type[T], json: Any, blocks: Sequence[Block]) -> T:
    """The value of a type that `write` made this of."""
    value: T = codec_of(kind).read(json, iter(blocks))
    return value
