"""Types and messages for checking values from files with pydantic.

Lists are refused at their first mistake: pydantic's description of a mistake is larger than the mistake, and a
compressed file of a kilobyte could cause gigabytes of descriptions.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Annotated, Any, Final, TypeVar, get_args

from pydantic import BaseModel, Field, RootModel, ValidationError

from decoding.errors import ConfigError, MirrorsdError, cut, listed, mistake, shown, unknown, wrong

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Many = Annotated[tuple[T, ...], Field(strict=False, fail_fast=True)]
"""A list in a file."""

IntKey = Annotated[int, Field(strict=False)]
"""A whole number that is a key in a file; a text of digits is converted, as the keys of JSON are texts."""

Pair = Annotated[tuple[T, T], Field(strict=False)]
"""A list of two in a file."""

MOST_MISTAKES: Final = 30_000
"""Mistakes up to which they are listed; a file with more is taken for another kind of file."""

MOST_SHOWN: Final = 10
"""Most mistakes that are described, more than fit into a message."""
_MOST_CHARACTERS: Final = 300
"""Longest description of an error within another message."""


def mistakes_in(error: ValidationError) -> list[dict[str, Any]]:
    """Return the mistakes in the form that `decoding.errors.mistake` takes; a single entry if there are too many.

    A validator of a whole model may raise with `place` in the error's context: the location within the model.
    """
    if (count := error.error_count()) > MOST_MISTAKES:
        return [{"loc": (), "msg": f"{count:,} mistakes, so it is another kind of file", "type": "many", "input": {}}]
    found = [item for item in error.errors(include_url=False) if not _is_given_up(item)]
    return [{**item, "loc": (*item["loc"], *item.get("ctx", {}).get("place", ()))} for item in found]


def _is_given_up(item: Mapping[str, Any]) -> bool:
    """Return whether a list counts as too short only because validation stopped at a mistake reported before."""
    return bool(item["type"] == "too_short" and len(item["input"]) > item["ctx"]["actual_length"])


def described(error: ValidationError, *, source: str | None = None, model: Any = None) -> str:
    """Return the first mistakes, a line each, after the name of the file if `source` gives one.

    For an unknown field, the fields of `model` are listed.
    """
    before = "" if source is None else f"{source}: "
    found = mistakes_in(error)
    lines = [
        before + (mistake(item) if source or item["loc"] else wrong(item)) + known_fields(item, model)
        for item in found[:MOST_SHOWN]
    ]
    return listed(lines, num_others=len(found[MOST_SHOWN:]))


def validated(model: type[M], data: Any, kind: type[MirrorsdError], *, source: str | None = None) -> M:
    """Return the data as a `model`; raise an error of type `kind` that lists the first mistakes."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise kind(described(error, source=source, model=model)) from error


def known_fields(item: Mapping[str, Any], model: Any) -> str:
    """Return the known fields, in brackets, if the mistake is an unknown field; else an empty text."""
    if item["type"] != "extra_forbidden":
        return ""
    *before, name = item["loc"]
    names = fields_at(model, before)
    return f" ({unknown('field', name, names)})" if names else ""


def plain(value: object) -> object:
    """Return numpy numbers and arrays, and lists of them, as Python numbers and lists; other values unchanged."""
    if isinstance(value, list):
        return [*map(plain, value)]
    if type(value) is tuple:
        return tuple(map(plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def require_whole(name: str, value: object, least: int | None = None) -> None:
    """Raise `ConfigError` unless a value is a whole number (of Python or numpy, but no bool) of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} is {shown(value)}: it must be a whole number")
    if least is not None and value < least:
        raise ConfigError(f"{name} is {shown(value)}: it must be at least {least}")


def fields_at(model: Any, location: Iterable[int | str]) -> tuple[str, ...]:
    """Return the names of the fields of the model at a location within `model`; none if several models are possible."""
    models = set(_models_in(model))
    for part in location:
        fields = {model.model_fields[part] for model in models if part in model.model_fields}
        tagged = {one for one in models if getattr(one.model_fields.get("kind"), "default", None) == part}
        models = {one for field in fields for one in _models_in(field.annotation)} or tagged or models
    return tuple(models.pop().model_fields) if len(models) == 1 else ()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        root = annotation.model_fields.get("root") if issubclass(annotation, RootModel) else None
        yield from [annotation] if root is None else _models_in(root.annotation)
    for inner in get_args(annotation):
        yield from _models_in(inner)


def told(error: Exception) -> str:
    """Return the message of any error; a `ValidationError` is described by its first mistakes."""
    return cut(described(error) if isinstance(error, ValidationError) else str(error), _MOST_CHARACTERS)


@contextmanager
def errors_as(kind: type[MirrorsdError], what: str) -> Iterator[None]:
    """Turn an `OSError` or `ValueError` of the block into an error of type `kind`: `what` (reason)."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise kind(f"{what} ({told(error)})") from error
