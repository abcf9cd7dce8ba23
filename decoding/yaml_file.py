"""YAML in and out: safe, validated, with file, line and column of every mistake, and written atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from decoding.errors import ConfigError
from decoding.files import replace_file

T = TypeVar("T")


class StrictModel(BaseModel):
    """What a file holds: nothing but the fields that are known, and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def load_yaml(path: str | Path, model: type[T]) -> T:
    """Read `path` as a `model` (a pydantic model, or any type pydantic can validate).

    Raises:
        ConfigError: the file is missing, is not YAML, repeats a key, or has wrong values; every mistake is
            listed with its line and column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read ({error})"
        raise ConfigError(msg) from error
    return parse_yaml(text, model, source=str(path))


def parse_yaml(text: str, model: type[T], *, source: str) -> T:
    """`load_yaml` of a text; `source` names it in messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            msg = f"{source}: is empty"
            raise ConfigError(msg)
        _refuse_repeated_keys(root, source)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        msg = f"{source}: not valid YAML: {error}"
        raise ConfigError(msg) from error
    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as error:
        lines = [_describe(item, root, source) for item in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from error


def save_yaml(data: Any, path: str | Path) -> None:
    """Write plain data as YAML, key order kept."""
    write_atomically(Path(path), yaml.safe_dump(data, sort_keys=False, width=100))


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that readers see the old one or the new one, never a part.

    Raises:
        ConfigError: the file cannot be written; no part of it is left.
    """
    try:
        replace_file(path, text.encode())
    except OSError as error:
        msg = f"{path}: cannot be written ({error})"
        raise ConfigError(msg) from error


def _refuse_repeated_keys(node: yaml.Node, source: str) -> None:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(item, source)
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        if key.value in seen:
            mark = key.start_mark
            msg = f"{source}:{mark.line + 1}:{mark.column + 1}: the key {key.value!r} is repeated"
            raise ConfigError(msg)
        seen.add(key.value)
        _refuse_repeated_keys(value, source)


def _describe(item: Any, root: yaml.Node, source: str) -> str:
    mark = _find(root, item["loc"]).start_mark
    place = ".".join(str(part) for part in item["loc"]) or "(whole file)"
    value = item.get("input")
    found = "" if isinstance(value, dict | list) else f", found {value!r}"
    return f"{source}:{mark.line + 1}:{mark.column + 1}: {place}: {item['msg']}{found}{_hint(value, item['type'])}"


def _hint(value: object, kind: str) -> str:
    """YAML 1.1 reads 1e-3 as a string, though the digits are right."""
    if isinstance(value, str) and kind.startswith(("float", "int")):
        try:
            float(value)
        except ValueError:
            return ""
        return " (YAML reads it as text: write 1.0e-3, not 1e-3 or '1e-3')"
    return ""


def _find(node: yaml.Node, location: tuple[int | str, ...]) -> yaml.Node:
    """The node a pydantic location points at, or the nearest one above it."""
    for part in location:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == str(part)), node)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
    return node
