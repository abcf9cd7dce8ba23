"""Lints YAML files of devices, links and platforms: reports wrong and suspicious numbers with their lines.

An unreadable file is a finding too. The rules are in `hwprofiles.lint_rules`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from decoding.errors import ConfigError, shown, unknown, wrong
from decoding.validation import fields_at, mistakes_in
from decoding.yaml_file import lines_of, load_yaml
from hwprofiles.lint_rules import Suspicion, of_device, of_link, of_platform
from hwprofiles.platform import MODELS, Platform, kind_of
from hwprofiles.quantity import quantity_fields
from hwprofiles.sheets import KINDS, DeviceSheet, LinkSheet, device_sheet, link_sheet, shipped_file, shipped_names

_LOCATED: Final = re.compile(r"^.*?:(\d+):\d+: (.*)$", re.DOTALL)
_OF_HARDWARE: Final = {"kind", "devices", *(field for model in MODELS.values() for field in quantity_fields(model))}
"""Every file of a device, link or platform has one of these fields, and no other file of this project has any."""
_Sheet = TypeVar("_Sheet", DeviceSheet, LinkSheet)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong in a file.

    Attributes:
        line: counted from 1.
        place: path of fields, joined by dots; empty for the whole file.
        value: the value there, as text; may be empty.
        what: what is wrong, as a sentence.
    """

    file: str
    line: int
    place: str
    value: str
    what: str

    def __str__(self) -> str:
        """One line, as compilers write them."""
        number = " ".join(filter(None, (self.place, self.value)))
        return f"{self.file}:{self.line}: {number}{': ' * bool(number)}{self.what}"


def shipped_files() -> tuple[Path, ...]:
    """Return the paths of all shipped files."""
    return tuple(shipped_file(kind, name) for kind in KINDS for name in shipped_names(kind))


def files_in(path: Path) -> tuple[Path, ...]:
    """Return a file, or the YAML files in a folder at any depth; raises `ConfigError` if there are none."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or folder")
    files = tuple(sorted(file for file in path.rglob("*") if file.suffix in (".yaml", ".yml")))
    if not files:
        raise ConfigError(f"{path}: holds no YAML file")
    return files


def is_of_hardware(path: Path) -> bool:
    """Return whether a file seems to describe a device, link or platform; True if it cannot be read."""
    try:
        return bool(_OF_HARDWARE & set(load_yaml(path, dict[str, Any])))
    except ConfigError:
        return True


def lint_file(path: Path) -> tuple[Finding, ...]:
    """Return the findings in a file of a device, link or platform, sorted by line."""
    try:
        data = load_yaml(path, dict[str, Any])
    except ConfigError as error:
        located = _LOCATED.match(str(error))
        line, what = (int(located[1]), located[2]) if located else (1, str(error).removeprefix(f"{path}: "))
        return (Finding(str(path), line, "", "", what),)
    if not _OF_HARDWARE & set(data):
        return (Finding(str(path), 1, "", "", "describes no device, link or platform"),)
    suspicions = [one for one in _suspicions(data, path.stem) if not _is_meant(one, data)]
    found = [
        Finding(str(path), line, ".".join(map(str, place)), "" if value is None else f"{value:g}", what)
        for line, (place, what, value, _) in zip(
            lines_of(path, [one.place for one in suspicions]), suspicions, strict=True
        )
    ]
    return tuple(sorted(found, key=lambda one: one.line))


def _suspicions(data: dict[str, Any], stem: str) -> Iterator[Suspicion]:
    """Yield the suspicions about a file's data; `stem` is the file's name without suffix."""
    kind = kind_of(data)
    try:
        if kind == "platform":
            yield from of_platform(Platform.model_validate(data))
        elif kind == "device":
            device = DeviceSheet.model_validate(data)
            yield from of_device(device, _known(device, stem, {n: device_sheet(n) for n in shipped_names("device")}))
        else:
            link = LinkSheet.model_validate(data)
            yield from of_link(link, _known(link, stem, {n: link_sheet(n) for n in shipped_names("link")}))
    except ValidationError as error:
        yield from (Suspicion(one["loc"], _in_words(one, MODELS[kind])) for one in mistakes_in(error))


def _is_meant(suspicion: Suspicion, data: Any) -> bool:
    """Return whether a number is suspected to use binary units and is written with one on purpose: `16 GiB`."""
    for key in (*suspicion.place, "value"):
        with suppress(LookupError, TypeError):
            data = data[key]
    return suspicion.is_binary and isinstance(data, str) and "iB" in data


def _known(sheet: _Sheet, stem: str, shipped: Mapping[str, _Sheet]) -> _Sheet | None:
    """Return the shipped sheet with the same name, or whose file has the same name."""
    return next((known for name, known in shipped.items() if known.name == sheet.name or name == stem), None)


_MAPS: Final = {
    "value": "should be a number, or a map of value, status and source",
    "sheet": "should be a map such as {sheet: NAME}",
}
"""How to describe an expected map, by a field that only such a map has."""


def _in_words(item: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return the message for an entry of `mistakes_in`; it names the valid fields of `model` where that helps."""
    if item["type"] == "extra_forbidden":
        *above, name = item["loc"]
        return f"{unknown('field', name, fields_at(model, above))}, found {shown(item['input'])}"
    if item["type"] == "model_type":
        fields = fields_at(model, item["loc"])
        told = next((words for field, words in _MAPS.items() if field in fields), "should be a map")
        return f"{told}, found {shown(item['input'])}"
    return wrong(item)
