"""Reads files of devices, links and platforms, and says on which line which number is wrong or looks so.

What cannot be read at all is found too: an unknown device at a link's end, a number without a source, a value outside
its span. What looks wrong although it can be read is listed in `hwprofiles.suspicions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from decoding.errors import ConfigError, shown
from decoding.validation import mistakes_in
from decoding.yaml_file import lines_of, load_yaml
from hwprofiles.platform import Platform, kind_of
from hwprofiles.sheets import KINDS, DeviceSheet, LinkSheet, device_sheet, link_sheet, shipped_file, shipped_names
from hwprofiles.suspicions import Place, Suspicion, of_device, of_link, of_platform

_LOCATED: Final = re.compile(r"^.*?:(\d+):\d+: (.*)$", re.DOTALL)
Sheet = TypeVar("Sheet", DeviceSheet, LinkSheet)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something wrong in a file.

    Attributes:
        file: as it was named.
        line: counted from 1.
        place: names of the fields that lead there, joined by dots; empty for the whole file.
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
    """Return the YAML files in a folder, at any depth; of a file, itself.

    Raises:
        ConfigError: there is neither, or the folder holds none.
    """
    if not path.is_dir():
        if not path.is_file():
            raise ConfigError(f"{path}: no such file or folder")
        return (path,)
    files = tuple(sorted(file for file in path.rglob("*") if file.suffix in (".yaml", ".yml")))
    if not files:
        raise ConfigError(f"{path}: holds no YAML file")
    return files


def lint_file(path: Path) -> tuple[Finding, ...]:
    """Return what is wrong in a file of a device, a link or a platform, by line."""
    try:
        data = load_yaml(path, dict[str, Any])
    except ConfigError as error:
        located = _LOCATED.match(str(error))
        line, what = (int(located[1]), located[2]) if located else (1, str(error).removeprefix(f"{path}: "))
        return (Finding(file=str(path), line=line, place="", value="", what=what),)
    suspicions = list(_unknown_devices(data)) or list(_suspicions(data, path.stem))
    lines = lines_of(path, [one.place for one in suspicions])
    found = [_finding(path, line, one) for line, one in zip(lines, suspicions, strict=True)]
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
        for item in mistakes_in(error):
            found = item["input"]
            value = "" if isinstance(found, dict | list | tuple) else f", found {shown(found)}"
            yield Suspicion(item["loc"], item["msg"].removeprefix("Value error, ") + value)


def _known(sheet: Sheet, stem: str, shipped: Mapping[str, Sheet]) -> Sheet | None:
    """Return the shipped sheet of the same name, or in a file of the same name."""
    same = [known for name, known in shipped.items() if known.name == sheet.name or name == stem]
    return same[0] if same else None


def _unknown_devices(data: Mapping[str, Any]) -> Iterator[Suspicion]:
    """Names of devices that the platform does not have; read without its model, which could not say where they are."""
    devices = data.get("devices")
    if not isinstance(devices, Mapping):
        return
    for place, name in _named_devices(data):
        if isinstance(name, str) and name not in devices:
            yield Suspicion(place, f"no device is called {shown(name)}; there are {', '.join(map(str, devices))}")


def _named_devices(data: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    yield ("host",), data.get("host")
    lists: list[tuple[Place, Any]] = []
    for index, link in enumerate(_items(data.get("links"), list)):
        lists.append((("links", index, "between"), link.get("between") if isinstance(link, Mapping) else None))
    for name, pool in _items(data.get("memory_pools"), dict):
        lists.append((("memory_pools", name, "devices"), pool.get("devices") if isinstance(pool, Mapping) else None))
    lists += [(("groups", name), members) for name, members in _items(data.get("groups"), dict)]
    for place, names in lists:
        yield from (((*place, index), name) for index, name in enumerate(_items(names, list)))


def _items(value: Any, kind: type) -> Any:
    """Return what a list or a mapping holds; nothing where the value is neither."""
    if not isinstance(value, kind):
        return ()
    return value.items() if isinstance(value, dict) else value


def _finding(path: Path, line: int, suspicion: Suspicion) -> Finding:
    value = suspicion.value
    return Finding(
        file=str(path),
        line=line,
        place=".".join(map(str, suspicion.place)),
        value="" if value is None else f"{value:g}",
        what=suspicion.what,
    )
