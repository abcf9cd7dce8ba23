"""A platform: its devices, the memories they share, and how they are linked, as a graph.

::

    name: a GPU and an NPU of one chip, and a card
    host: cpu
    devices:
      gpu: {sheet: lunar-lake-gpu}
      npu: {sheet: lunar-lake-npu4, memory_cap_bytes_per_s: 6.0e+10}
      card0: {sheet: rtx4090}
      card1: {sheet: rtx4090}
      cpu: {name: its CPU, kind: cpu}
    memory_pools:
      memory: {devices: [gpu, npu, cpu], bytes_per_s: 1.365e+11, memory_bytes: 3.2e+10}
    links:
      - {between: [gpu, npu], sheet: unified-memory}
      - {between: [cpu, card0], sheet: pcie-4-x16, latency_s: 5.0e-6}
    groups:
      cards: [card0, card1]

What a device or a link does not say itself, its sheet says (`hwprofiles.placed`). `load_platform` takes the name of a
shipped one or the path of the user's own, `find_entry` that of a device or a link too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

import networkx as nx
from pydantic import Field, model_validator

from decoding.errors import ProfileError, unknown
from decoding.files import named_path
from decoding.validation import Many
from decoding.yaml_file import load_yaml
from hwprofiles.host import describe_host
from hwprofiles.machines.device_names import NamedDevice, find_device, machine_of
from hwprofiles.placed import MemoryPool, Name, PlacedDevice, PlacedLink
from hwprofiles.quantity import Quantity, with_quantities
from hwprofiles.sheets import DeviceSheet, Kind, LinkSheet, Priced, device_sheet, shipped_file, shipped_names

SECOND_STREAM: Final = "#2"
"""After a device's name: the lane is a second stream of work on it, next to another lane's."""


class Platform(Priced):
    """Devices, memories and links of one machine or cluster.

    Attributes:
        name: in words.
        devices: by the names that schedules and overrides call them.
        memory_pools: memories that several devices share, by name; other devices have their own.
        links: what joins the devices.
        host: the device on which the driver runs, and through which goes what no link carries past it; None if
            that costs nothing.
        groups: devices that work on one model as tensor-parallel ranks, by the group's name.
        lanes: what `mirrorsd run` calls devices and groups, by their names here; those it cannot run have none.
        makes: shipped platforms that stand in for it where this host's CPU has their instruction sets; the first counts
        price_usd_per_hour, price_usd, write_off_s: of the whole machine, where its devices have no price of their own.
    """

    name: Annotated[str, Field(min_length=1)]
    devices: Annotated[Mapping[Name, PlacedDevice], Field(min_length=1)]
    memory_pools: Mapping[Name, MemoryPool] = Field(default={})
    links: Many[PlacedLink] = ()
    host: Name | None = None
    groups: Mapping[Name, Annotated[Many[Name], Field(min_length=2)]] = Field(default={})
    lanes: Mapping[Name, Name] = Field(default={})
    makes: Mapping[Name, Many[str]] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _with_bare_numbers(cls, data: Any) -> Any:
        return with_quantities(data, cls) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, members in self._mentions():
            for device in members:
                if device not in self.devices:
                    msg = f"{what} names the device {device!r}; devices are {', '.join(self.devices)}"
                    raise ValueError(msg)
        _refuse_repeated("devices, memory pools and groups", [*self.devices, *self.memory_pools, *self.groups])
        _refuse_repeated("links in one direction", [way for link in self.links for way in link.directions])
        _refuse_repeated(
            "devices of memory pools", [one for pool in self.memory_pools.values() for one in pool.devices]
        )
        for name, members in self.groups.items():
            _refuse_repeated(f"devices of the group {name!r}", list(members))
        if strangers := [name for name in self.lanes if name not in (*self.devices, *self.groups)]:
            msg = f"lanes names {strangers[0]!r}; devices and groups are {', '.join((*self.devices, *self.groups))}"
            raise ValueError(msg)
        _refuse_repeated("lanes", [self.lane_name(name) for name in (*self.devices, *self.groups)])
        return self

    @cached_property
    def graph(self) -> Any:
        """Directed networkx graph: nodes carry `device` (`PlacedDevice`), edges `link` (`PlacedLink`).

        A link that leads both ways is two edges, which share nothing.
        """
        graph = nx.DiGraph(name=self.name)
        graph.add_nodes_from((name, {"device": device}) for name, device in self.devices.items())
        graph.add_edges_from((*way, {"link": link}) for link in self.links for way in link.directions)
        return graph

    def device(self, name: str) -> PlacedDevice:
        """Return the sheet of a device, with what the platform says of it.

        Raises:
            ProfileError: the platform has no such device.
        """
        if name not in self.devices:
            msg = f"platform {self.name!r} has no device {name!r}; it has {', '.join(self.devices)}"
            raise ProfileError(msg)
        return self.devices[name]

    def members(self, name: str) -> tuple[str, ...]:
        """Return the devices of a group; of a device, or of a second stream on it, the device.

        Raises:
            ProfileError: neither a group nor a device is called so.
        """
        if name in self.groups:
            return self.groups[name]
        name = name.removesuffix(SECOND_STREAM)
        self.device(name)
        return (name,)

    def are_apart(self, one: str, other: str) -> bool:
        """Return whether two devices or groups can work at once: they have no device and no core in common."""
        parts = [
            {*(members := self.members(name)), *(core for member in members for core in self.devices[member].cores)}
            for name in (one, other)
        ]
        return parts[0].isdisjoint(parts[1])

    def lane_name(self, name: str) -> str:
        """Return what `mirrorsd run` calls a device, a group or a second stream; its own name where nobody says."""
        device = name.removesuffix(SECOND_STREAM)
        return self.lanes.get(device, device) + name[len(device) :]

    def pool_of(self, device: str) -> tuple[str, MemoryPool]:
        """Return the memory that a device reads: one of `memory_pools`, or its own, under its own name.

        Raises:
            ProfileError: the platform has no such device, or nothing says how fast its own memory is.
        """
        sheet = self.device(device)
        for name, pool in self.memory_pools.items():
            if device in pool.devices:
                return name, pool
        if sheet.memory_bytes_per_s is None:
            msg = f"device {device!r} is in no memory pool and gives no memory_bytes_per_s; measure it, or give it"
            raise ProfileError(msg)
        own = MemoryPool(devices=(device,), bytes_per_s=sheet.memory_bytes_per_s, memory_bytes=sheet.memory_bytes)
        return device, own

    def reading_peak(self, device: str) -> Quantity:
        """What a device's efficiency is a share of: its own bandwidth where the platform gives one, else its memory's.

        A shipped sheet's number is of the memory that its chip shares, and here a pool describes that memory.

        Raises:
            ProfileError: as in `pool_of`.
        """
        placed, (_, pool) = self.device(device), self.pool_of(device)
        own = placed.memory_bytes_per_s
        of_sheet = None if placed.sheet is None else device_sheet(placed.sheet).memory_bytes_per_s
        return pool.bytes_per_s if own is None or own == of_sheet else own

    def link(self, start: str, end: str) -> PlacedLink:
        """Return the link that leads straight from one device to another.

        Raises:
            ProfileError: there is none, or a device is unknown.
        """
        self.device(start)
        self.device(end)
        if not self.graph.has_edge(start, end):
            msg = f"platform {self.name!r}: no link joins {start} to {end}"
            raise ProfileError(msg)
        found: PlacedLink = self.graph.edges[start, end]["link"]
        return found

    def path(self, start: str, end: str, num_bytes: float = 0.0) -> tuple[str, ...]:
        """Return the devices a message of that size passes on its fastest way, both ends included.

        Raises:
            ProfileError: a device is unknown, or nothing connects the two.
        """
        return tuple(self._fastest(start, end, num_bytes)[1])

    def transfer_s(self, start: str, end: str, num_bytes: float) -> float:
        """Return seconds for a message between two devices; each link passes it on whole. Zero on one device.

        Raises:
            ProfileError: as in `path`.
        """
        return self._fastest(start, end, num_bytes)[0]

    def _fastest(self, start: str, end: str, num_bytes: float) -> tuple[float, list[str]]:
        """Return seconds and way of a message."""
        self.device(start)
        self.device(end)

        def cost(_left: str, _right: str, edge: Mapping[str, PlacedLink]) -> float:
            return edge["link"].transfer_s(num_bytes)

        try:
            seconds, way = nx.single_source_dijkstra(self.graph, start, end, weight=cost)
        except nx.NetworkXNoPath as error:
            msg = f"platform {self.name!r}: no link leads from {start} to {end}"
            raise ProfileError(msg) from error
        return seconds, way

    def _mentions(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return what names devices, and those it names."""
        return [
            *(("a link", link.between) for link in self.links),
            *((f"the memory pool {name!r}", pool.devices) for name, pool in self.memory_pools.items()),
            *((f"the group {name!r}", members) for name, members in self.groups.items()),
            ("host", () if self.host is None else (self.host,)),
        ]


def load_platform(name_or_path: str | Path) -> Platform:
    """Return a platform: one shipped here by its name, the user's own by the path of its file, or a device's machine.

    Raises:
        ProfileError: neither a shipped platform nor a file is called so; lists those there are.
        ConfigError: the file is wrong; names file, line and value.
    """
    name, path = str(name_or_path), Path(name_or_path)
    if name in shipped_names("platform"):
        return load_yaml(shipped_file("platform", name), Platform)
    if os.path.isfile(path) or isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml"):  # noqa: PTH113
        return load_yaml(path, Platform)
    if (device := find_device(name)) is not None:
        return _machine(device)
    names = (*shipped_names("platform"), *shipped_names("device"))
    raise ProfileError(f"{unknown('platform', name, names)} (A file's path will do.)")


def of_this_make(platform: Platform) -> Platform:
    """Return the platform of the make that this host's CPU is of, where a platform is of several; else itself."""
    here = {*describe_host()["instruction_sets"].split()} if platform.makes else set()
    return next((load_platform(name) for name, needed in platform.makes.items() if here >= {*needed}), platform)


def _machine(device: NamedDevice) -> Platform:
    """The platform of a chip that ships, or a machine made of a device."""
    pool = device_sheet(device.sheet).memory_pool
    if device.num_devices == 1 and device.memory_bytes is None and pool in shipped_names("platform"):
        return load_platform(pool)
    return Platform.model_validate(machine_of(device))


def _refuse_repeated(what: str, names: list[Any]) -> None:
    if repeated := sorted({str(name) for name in names if names.count(name) > 1}):
        msg = f"{what} repeat: {', '.join(repeated)}"
        raise ValueError(msg)


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
    is_file = path.is_file() or path.suffix in (".yaml", ".yml")
    if not is_file and (device := find_device(name_or_path)) is not None:
        return Entry("device", device.sheet, device_sheet(device.sheet))
    if is_file:
        kind = kind_of(load_yaml(path, dict[str, Any]))
        return Entry(kind, name_or_path, load_yaml(path, MODELS[kind]))
    names = [name for kind in MODELS for name in shipped_names(kind)]
    raise ProfileError(f"{unknown('platform, device or link', name_or_path, names)} (Nor is there such a file.)")
