"""How values from files are checked: no type is converted, and a list is refused at its first mistake.

A description takes more memory than its mistake: a file of a kilobyte, unpacked, could make gigabytes of them.
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
"""A whole number that is a key in a file: JSON, and what was JSON once, has texts for keys."""

Pair = Annotated[tuple[T, T], Field(strict=False)]
"""A list of two in a file."""

MOST_MISTAKES: Final = 30_000
"""A file with more mistakes is another kind of file."""

MOST_SHOWN: Final = 10
"""Mistakes that are described; a message has room for fewer."""
_MOST_CHARACTERS: Final = 300
"""Longest description within another message."""


def mistakes_in(error: ValidationError) -> list[dict[str, Any]]:
    """Return the mistakes, as `decoding.errors.mistake` reads them; one entry for all where there are too many.

    A check of a whole model says by `place` in the context of its error where in the model the mistake is.
    """
    if (count := error.error_count()) > MOST_MISTAKES:
        return [{"loc": (), "msg": f"{count:,} mistakes, so it is another kind of file", "type": "many", "input": {}}]
    found = [item for item in error.errors(include_url=False) if not _is_given_up(item)]
    return [{**item, "loc": (*item["loc"], *item.get("ctx", {}).get("place", ()))} for item in found]


def _is_given_up(item: Mapping[str, Any]) -> bool:
    """Return whether a list is called too short only because of a mistake that is reported before."""
    return bool(item["type"] == "too_short" and len(item["input"]) > item["ctx"]["actual_length"])


def described(error: ValidationError, *, source: str | None = None, model: Any = None) -> str:
    """Return the first mistakes, a line each, with the name of the file before each of them.

    What is wrong with the whole of something that is no file stands by itself. Of a field that `model` does not have,
    those that it has are told.
    """
    before = "" if source is None else f"{source}: "
    found = mistakes_in(error)
    lines = [
        before + (mistake(item) if source or item["loc"] else wrong(item)) + known_fields(item, model)
        for item in found[:MOST_SHOWN]
    ]
    return listed(lines, num_others=len(found[MOST_SHOWN:]))


def validated(model: type[M], data: Any, kind: type[MirrorsdError], *, source: str | None = None) -> M:
    """Return a model of some data; raise `kind` with the first mistakes, as `described`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise kind(described(error, source=source, model=model)) from error


def known_fields(item: Mapping[str, Any], model: Any) -> str:
    """Return in brackets, of a mistake that is a field which is not known, which ones are; nothing of others."""
    if item["type"] != "extra_forbidden":
        return ""
    *before, name = item["loc"]
    names = fields_at(model, before)
    return f" ({unknown('field', name, names)})" if names else ""


def plain(value: object) -> object:
    """Return numbers and arrays of numpy, and lists of them, as Python's; anything else as it is."""
    if isinstance(value, list):
        return [*map(plain, value)]
    if type(value) is tuple:
        return tuple(map(plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def require_whole(name: str, value: object, least: int | None = None) -> None:
    """Raise `ConfigError` for a value that is no whole number (numpy has some, `True` is none), or below the least."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} is {shown(value)}: it must be a whole number")
    if least is not None and value < least:
        raise ConfigError(f"{name} is {shown(value)}: it must be at least {least}")


def fields_at(model: Any, location: Iterable[int | str]) -> tuple[str, ...]:
    """Return the names of the fields that a model has at a place in it; none where several models may stand there."""
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
    """Return any error in words: a `ValidationError` by its first mistakes."""
    return cut(described(error) if isinstance(error, ValidationError) else str(error), _MOST_CHARACTERS)


@contextmanager
def errors_as(kind: type[MirrorsdError], what: str) -> Iterator[None]:
    """Raise `OSError` and `ValueError` of the block as one of our errors: `what`, and why in brackets."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise kind(f"{what} ({told(error)})") from error
