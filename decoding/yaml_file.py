"""Reads YAML files into validated models, with the line and column of every mistake, and writes them atomically.

The size of a file, its depth and the number of its values with all aliases expanded are limited, so that any file is
read or refused within seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from decoding.errors import ConfigError, cut, listed, mistake, shown
from decoding.files import read_text, replace_file
from decoding.validation import MOST_SHOWN, errors_as, known_fields, mistakes_in, plain

T = TypeVar("T")

MAX_BYTES: Final = 8 << 20
MAX_DEPTH: Final = 40
"""Deepest nesting of lists and maps; our own files nest at most eight deep."""
MAX_NODES: Final = 50_000
"""Most values, lists and maps of a file with its aliases expanded; a profile has about two thousand."""

_MOST_DIGITS: Final = 400
_WHOLE: Final = '# whole if the last line is "..."\n'
"""First line of files that must end with "...": without it, the beginning of a truncated file might be valid YAML."""

if TYPE_CHECKING:
    from yaml import SafeLoader as _Parser
else:
    _Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if libyaml is installed


class StrictModel(BaseModel):
    """Base of the models of files: immutable, without unknown fields, infinities or NaN.

    No type is converted (`true` and `"1.5"` are not numbers), so a field for a list has the type `Many` or `Pair`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class UserModel(StrictModel):
    """Base of the models that users also create in Python: wrong values raise `ConfigError`, in `model_copy` too.

    Numbers and arrays of numpy are accepted.
    """

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**{name: plain(value) for name, value in data.items()})
        except ValidationError as error:
            model, found = type(self), mistakes_in(error)
            lines = [
                mistake({**item, "loc": (model.__name__, *item["loc"])}) + known_fields(item, model)
                for item in found[:MOST_SHOWN]
            ]
            raise ConfigError(listed(lines, num_others=len(found[MOST_SHOWN:]))) from error

    # makes pydantic skip this __init__ when it validates a file, whose mistakes are reported with file and line instead
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with updated values; raise `ConfigError` if they are wrong."""
        copied = super().model_copy(update=update, deep=deep)
        return type(self)(**dict(copied)) if update else copied


def load_yaml(path: str | Path, model: type[T]) -> T:
    """Return the content of `path` as a `model` (a pydantic model, or any type pydantic can validate).

    Raises:
        ConfigError: the file is missing, is not YAML, is too large or too deep, repeats a key, or has wrong values;
            the first mistakes are listed with their lines and columns.
    """
    with errors_as(ConfigError, f"{cut(str(path), 200)}: cannot be read"):
        text = read_text(Path(path), MAX_BYTES)
    return parse_yaml(text, model, source=str(path))


def parse_yaml(text: str, model: type[T], *, source: str) -> T:
    """Return the value of a YAML text, like `load_yaml`; `source` names the text in messages."""
    if text.startswith(_WHOLE) and not text.rstrip().endswith("\n..."):
        raise ConfigError(f'{source}: is cut short, its last line is not "..."; copy or make it again')
    try:
        _refuse_bombs(text)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise ConfigError(f"{source}: is empty")
        data = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f"{mark.line + 1}:{mark.column + 1}:"
        what = "" if isinstance(error, _Refused) else "not valid YAML: "
        raise ConfigError(f"{source}:{place} {what}{cut(str(error.problem), 200)}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{source}: not valid YAML: {cut(str(error), 200)}") from error
    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as error:
        found = mistakes_in(error)
        lines = [_describe(item, root, source) + known_fields(item, model) for item in found[:MOST_SHOWN]]
        raise ConfigError(listed(lines, num_others=len(found[MOST_SHOWN:]))) from error


def lines_of(path: str | Path, locations: Iterable[Sequence[int | str]]) -> list[int]:
    """Return the line (from 1) where the value at each location of a valid file begins.

    A location is a sequence of keys and indices. For one that does not exist, it is the line of the innermost value
    around it.
    """
    root = yaml.compose(read_text(Path(path), MAX_BYTES), Loader=_Parser)
    return [1 if root is None else int(_find(root, tuple(one)).start_mark.line) + 1 for one in locations]


def save_yaml(data: Any, path: str | Path, *, is_marked: bool = False) -> None:
    """Write plain data as YAML, in the order of its keys; a marked file is refused when it is read truncated."""
    text = yaml.safe_dump(data, sort_keys=False, width=100, explicit_end=is_marked)
    write_atomically(Path(path), _WHOLE * is_marked + text)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically; raise `ConfigError` if it cannot be written."""
    with errors_as(ConfigError, f"{path}: cannot be written"):
        replace_file(path, text.encode())


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that is refused; the mark says where."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _Loader(_Parser):
    """A safe loader whose errors have the line and column of the value."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  PyYAML's signature
        """Return the value of a node."""
        kind = str(node.tag).rpartition(":")[2]
        if kind in ("int", "float") and len(node.value) > _MOST_DIGITS:  # a long 1:1:1... takes quadratic time
            problem = f"not valid YAML: what has more than {_MOST_DIGITS} digits is no {kind}"
            raise _Refused(problem, node.start_mark)
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:
            value = cut(shown(node.value), 60) if isinstance(node, yaml.ScalarNode) else "a collection"
            problem = f"not valid YAML: {value} is no {kind} ({cut(str(error), 100)})"
            raise _Refused(problem, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        """Return a mapping; raise `_Refused` for two equal keys, even if they are spelled differently."""
        seen, spelled = set[Any](), set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            value = key.value if key.tag.endswith(":merge") else self.construct_object(key)
            if value in seen or key.value in spelled:
                otherwise = "" if key.value in spelled else " in another spelling"
                raise _Refused(f"the key {shown(key.value)} is repeated{otherwise}", key.start_mark)
            seen.add(value)
            spelled.add(key.value)
        return super().construct_mapping(node, deep)


def _refuse_bombs(text: str) -> None:
    """Raise `_Refused` for a text that nests too deep or has too many values, with its aliases expanded.

    It reads only the parser's events, before anything is built: the YAML parsers and Python fail at some depth, one of
    them with a crash.
    """
    num_values = 0
    heights = [0]  # nesting below the top level and below each open list or map, as far as it was read
    around: list[tuple[str | None, int, Any]] = []  # of each open list or map: anchor, number of values before, start
    known: dict[str | None, tuple[int, int]] = {}  # number of values and height of each anchor's content
    for event in yaml.parse(text, Loader=_Parser):
        size, height = int(isinstance(event, yaml.NodeEvent)), 0
        if isinstance(event, yaml.CollectionStartEvent):
            around.append((event.anchor, num_values, event.start_mark))
            heights.append(0)
        elif isinstance(event, yaml.AliasEvent):
            if whole := [mark for anchor, _, mark in around if anchor == event.anchor]:
                raise _Refused("an alias stands for what it is a part of", whole[-1])
            size, height = known.get(event.anchor, (1, 0))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before, _ = around.pop()
            height = 1 + heights.pop()
            known[anchor] = num_values - before, height
        num_values, heights[-1] = num_values + size, max(heights[-1], height)
        if len(around) + height > MAX_DEPTH:
            raise _Refused(f"lists and maps are nested more than {MAX_DEPTH} deep", event.start_mark)
        if num_values > MAX_NODES:
            raise _Refused(f"it has more than {MAX_NODES:,} values, those of aliases included", event.start_mark)


def _describe(item: Any, root: yaml.Node, source: str) -> str:
    mark = _find(root, item["loc"]).start_mark
    return f"{source}:{mark.line + 1}:{mark.column + 1}: {mistake(item)}{_hint(item.get('input'), item['type'])}"


def _hint(value: object, kind: str) -> str:
    """Return a hint for a number such as 1e-3, which YAML 1.1 reads as a string."""
    if isinstance(value, str) and kind.startswith("float"):
        try:
            float(value)
        except ValueError:
            return ""
        return " (YAML reads it as text: write 1.0e-3, not 1e-3 or '1e-3')"
    return ""


def _find(node: yaml.Node, location: tuple[int | str, ...]) -> yaml.Node:
    """Return the node at a location below `node`, or the innermost node that exists around it."""
    for part in location:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == str(part)), node)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
    return node
