"""Reads files of devices, links and platforms, and says on which line which number is wrong or looks so.

Files that cannot be read at all are findings too. What else is looked for is listed in `hwprofiles.lint_rules`.
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
"""Fields of which every device, link or platform has one, and no other file of ours has any."""
_Sheet = TypeVar("_Sheet", DeviceSheet, LinkSheet)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong in a file.

    Attributes:
        line: counted from 1.
        place: the fields that lead there, joined by dots; empty for the whole file.
        value: what is found there, as text; empty where nothing is.
        what: a sentence.
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
    """Return the files of all that is shipped."""
    return tuple(shipped_file(kind, name) for kind in KINDS for name in shipped_names(kind))


def files_in(path: Path) -> tuple[Path, ...]:
    """Return a file, or the YAML files in a folder, at any depth; `ConfigError` where there are none."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or folder")
    files = tuple(sorted(file for file in path.rglob("*") if file.suffix in (".yaml", ".yml")))
    if not files:
        raise ConfigError(f"{path}: holds no YAML file")
    return files


def is_of_hardware(path: Path) -> bool:
    """Return whether a file seems to describe a device, a link or a platform; one that cannot be read may do so."""
    try:
        return bool(_OF_HARDWARE & set(load_yaml(path, dict[str, Any])))
    except ConfigError:
        return True


def lint_file(path: Path) -> tuple[Finding, ...]:
    """Return what is wrong in a file of a device, a link or a platform, by line."""
    if not is_of_hardware(path):
        return (Finding(str(path), 1, "", "", "describes no device, link or platform"),)
    try:
        data = load_yaml(path, dict[str, Any])
    except ConfigError as error:
        located = _LOCATED.match(str(error))
        line, what = (int(located[1]), located[2]) if located else (1, str(error).removeprefix(f"{path}: "))
        return (Finding(str(path), line, "", "", what),)
    suspicions = [one for one in _suspicions(data, path.stem) if not _is_meant(one, data)]
    found = [
        Finding(str(path), line, ".".join(map(str, place)), "" if value is None else f"{value:g}", what)
        for line, (place, what, value, _) in zip(
            lines_of(path, [one.place for one in suspicions]), suspicions, strict=True
        )
    ]
    return tuple(sorted(found, key=lambda one: one.line))


def _suspicions(data: dict[str, Any], stem: str) -> Iterator[Suspicion]:
    """Yield what is wrong in the data of a file of that name."""
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
    """Return whether a number is suspected of powers of two and is written so: `16 GiB`."""
    for key in (*suspicion.place, "value"):
        with suppress(LookupError, TypeError):
            data = data[key]
    return suspicion.is_binary and isinstance(data, str) and "iB" in data


def _known(sheet: _Sheet, stem: str, shipped: Mapping[str, _Sheet]) -> _Sheet | None:
    """Return the shipped sheet of the same name, or in a file of the same name."""
    return next((known for name, known in shipped.items() if known.name == sheet.name or name == stem), None)


_MAPS: Final = {
    "value": "should be a number, or a map of value, status and source",
    "sheet": "should be a map such as {sheet: NAME}",
}
"""What is expected of a map, by a field that it may have."""


def _in_words(item: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return what is wrong by an entry of `mistakes_in`; of data of `model`, where there are other fields or a map."""
    if item["type"] == "extra_forbidden":
        *above, name = item["loc"]
        return f"{unknown('field', name, fields_at(model, above))}, found {shown(item['input'])}"
    if item["type"] == "model_type":
        fields = fields_at(model, item["loc"])
        told = next((words for field, words in _MAPS.items() if field in fields), "should be a map")
        return f"{told}, found {shown(item['input'])}"
    return wrong(item)
