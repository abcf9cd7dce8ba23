"""Everything that ships, by name, and files of the same kinds: what a name or a path stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from decoding.errors import ProfileError, shown
from decoding.files import named_path
from decoding.yaml_file import load_yaml
from hwprofiles.platform import Platform
from hwprofiles.sheets import DeviceSheet, Kind, LinkSheet, shipped_file, shipped_names

MODELS: Final[Mapping[Kind, type[Platform | DeviceSheet | LinkSheet]]] = {
    "platform": Platform,
    "device": DeviceSheet,
    "link": LinkSheet,
}


class Entry(NamedTuple):
    """Something that ships, or that a file describes.

    Attributes:
        kind: what it is.
        name: what it is called here, or its path.
        content: what is in its file.
    """

    kind: Kind
    name: str
    content: Platform | DeviceSheet | LinkSheet


def kind_of(data: Mapping[str, Any]) -> Kind:
    """Return what the data of a file describe, by the fields there are."""
    if "devices" in data:
        return "platform"
    return "link" if {"bytes_per_s", "latency_s"} & set(data) else "device"


def shipped_entries() -> Iterator[Entry]:
    """Yield all that ships: platforms, then devices, then links."""
    for kind, model in MODELS.items():
        yield from (Entry(kind, name, load_yaml(shipped_file(kind, name), model)) for name in shipped_names(kind))


def find_entry(name_or_path: str) -> Entry:
    """Return what ships under a name, or what a file describes.

    Raises:
        ProfileError: nothing ships under that name, and there is no such file; lists the names.
        ConfigError: the file is wrong; names file, line and value.
    """
    for kind, model in MODELS.items():
        if name_or_path in shipped_names(kind):
            return Entry(kind, name_or_path, load_yaml(shipped_file(kind, name_or_path), model))
    path = named_path(name_or_path)
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        kind = kind_of(load_yaml(path, dict[str, Any]))
        return Entry(kind, name_or_path, load_yaml(path, MODELS[kind]))
    names = "; ".join(f"{kind}s {', '.join(shipped_names(kind))}" for kind in MODELS)
    msg = f"nothing is called {shown(name_or_path)}, nor is there such a file; there are {names}"
    raise ProfileError(msg)
