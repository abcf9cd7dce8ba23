"""A platform: devices, the memories that they share, and the links between them (docs/platforms.md).

Fields that a device or link omits are taken from its data sheet (`hwprofiles.platform_parts`).
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from decoding.errors import ConfigError, ProfileError, unknown
from decoding.files import named_path
from decoding.validation import Many, validated
from decoding.yaml_file import load_yaml
from hwprofiles.host import describe_host
from hwprofiles.machines.device_names import (
    NamedDevice,
    device_named,
    find_device,
    machine_of,
)
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.platform_parts import MemoryPool, Name, PlacedDevice, PlacedLink
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import DeviceSheet, Kind, LinkSheet, Priced, device_sheet, shipped_file, shipped_names

SECOND_STREAM: Final = "#2"
"""Suffix of the name of a lane that is a device's second stream."""


class Platform(Priced):
    """Devices, memories and links of one machine or cluster.

    Attributes:
        devices: by the names that schedules and overrides use.
        memory_pools: memories that several devices share, by name; a device in none has its own memory.
        host: the device that `--add` links new devices to; None: to all devices. (The driver always runs next to the
            target.)
        groups: devices that hold one model as tensor-parallel ranks, by the group's name.
        lanes: lane names of `mirrorsd run` by device or group; devices without an entry cannot be run.
        makes: shipped platforms that replace this one, by name, each with a set of instruction sets: it applies on a
            host whose CPU has exactly these (of the sets that `hwprofiles.host` looks for).
        price_usd_per_hour, price_usd, write_off_s: price of the whole machine, if its devices have none.
    """

    name: Annotated[str, Field(min_length=1)]
    devices: Annotated[Mapping[Name, PlacedDevice], Field(min_length=1)]
    memory_pools: Mapping[Name, MemoryPool] = Field(default={})
    links: Many[PlacedLink] = ()
    host: Name | None = None
    groups: Mapping[Name, Annotated[Many[Name], Field(min_length=2)]] = Field(default={})
    lanes: Mapping[Name, Name] = Field(default={})
    makes: Mapping[Name, Many[str]] = Field(default={})

    def __repr__(self) -> str:
        """Show the names only: the numbers would fill pages."""
        return f"<Platform {self.name}: {', '.join(self.devices)}>"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        mentions: list[tuple[tuple[str | int, ...], Sequence[str]]] = [
            *((("links", number, "between"), link.between) for number, link in enumerate(self.links)),
            *((("memory_pools", name, "devices"), pool.devices) for name, pool in self.memory_pools.items()),
            *((("groups", name), members) for name, members in self.groups.items()),
        ]
        named = [((*place, index), name) for place, names in mentions for index, name in enumerate(names)]
        for place, name in [(("host",), self.host), *named]:
            if name not in {*self.devices, None}:
                devices = ", ".join(self.devices)
                raise PydanticCustomError(
                    "unknown_device", f"no device is called {name!r}; there are {devices}", {"place": place}
                )
        known = (*self.devices, *self.groups)
        if strangers := [name for name in self.lanes if name not in known]:
            raise ValueError(f"lanes names {strangers[0]!r}; devices and groups are {', '.join(known)}")
        once: dict[str, Iterable[object]] = {
            "devices, memory pools and groups": (*known, *self.memory_pools),
            "links in one direction": (way for link in self.links for way in link.directions),
            "devices of memory pools": (one for pool in self.memory_pools.values() for one in pool.devices),
            **{f"devices of the group {name!r}": members for name, members in self.groups.items()},
            "lanes": map(self.lane_name, known),
        }
        for what, names in once.items():
            if repeated := sorted(str(name) for name, count in Counter(names).items() if count > 1):
                raise ValueError(f"{what} repeat: {', '.join(repeated)}")
        return self

    @cached_property
    def graph(self) -> Any:
        """Directed networkx graph: nodes carry `device` (`PlacedDevice`), edges `link` (`PlacedLink`) by direction."""
        import networkx as nx

        graph = nx.DiGraph(name=self.name)
        graph.add_nodes_from((name, {"device": device}) for name, device in self.devices.items())
        graph.add_edges_from((*way, {"link": link}) for link in self.links for way in link.directions)
        return graph

    @cached_property
    def _links(self) -> dict[tuple[str, str], PlacedLink]:
        """Links by direction."""
        return {way: link for link in self.links for way in link.directions}

    def device(self, name: str) -> PlacedDevice:
        """Return a device; raises `ProfileError` if there is none of that name."""
        if name not in self.devices:
            raise ProfileError(f"platform {self.name!r} has no device {name!r}; it has {', '.join(self.devices)}")
        return self.devices[name]

    def members(self, name: str) -> tuple[str, ...]:
        """Return the devices of a lane: a group, a layer split, a device or its second stream.

        Raises `ProfileError` for an unknown name.
        """
        if name in self.groups:
            return self.groups[name]
        split = LayerSplit.of(name)
        devices = (name.removesuffix(SECOND_STREAM),) if split is None else split.devices
        for one in devices:
            self.device(one)
        return devices

    def are_apart(self, one: str, other: str) -> bool:
        """Return whether two devices or groups can work at once: they have no device and no core in common."""
        devices, other_devices = {*self.members(one)}, {*self.members(other)}
        cores = {core for name in devices for core in self.devices[name].cores}
        other_cores = {core for name in other_devices for core in self.devices[name].cores}
        return not devices & other_devices and not cores & other_cores

    def lane_name(self, name: str) -> str:
        """Return the lane name of a device, group or second stream in `mirrorsd run`; the name itself without entry."""
        device = name.removesuffix(SECOND_STREAM)
        return self.lanes.get(device, device) + name[len(device) :]

    def pool_of(self, device: str) -> tuple[str, MemoryPool]:
        """Return (name, memory) of the memory that a device reads: one of `memory_pools`, else (device, its own).

        Raises:
            ProfileError: there is no such device, or its own memory has no bandwidth.
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

    def has_own_memory(self, device: str) -> bool:
        """Return whether no other device uses a device's memory: neither its chip nor a pool shares it."""
        pools = (pool for pool in self.memory_pools.values() if device in pool.devices)
        return self.device(device).memory_pool is None and all(len(pool.devices) == 1 for pool in pools)

    def own_part(self, device: str) -> Quantity | None:
        """Return the part of a shared memory that is reserved for a device, such as by a BIOS; None if there is none.

        The device's `memory_bytes` means such a part if it is less than the pool and not the value of its sheet, which
        is the capacity of the whole memory.
        """
        placed, (name, pool) = self.device(device), self.pool_of(device)
        own = placed.memory_bytes
        of_sheet = None if placed.sheet is None else device_sheet(placed.sheet).memory_bytes
        is_whole = (
            own is None or own == of_sheet or (pool.memory_bytes is not None and own.value >= pool.memory_bytes.value)
        )
        return None if name == device or is_whole else own

    def room_of(self, device: str) -> str:
        """Return the name of the memory that must hold a device's weights: its reserved part, else its pool."""
        return device if self.own_part(device) is not None else self.pool_of(device)[0]

    def reading_peak(self, device: str) -> Quantity:
        """Return the bandwidth that a device's `memory_efficiency` refers to; raises as `pool_of`.

        Normally that is the memory's. It is the device's if the platform gives one that is neither its sheet's (which
        describes the chip's shared memory) nor the pool's. For an NPU in another chip's memory it is the sheet's: NPUs
        reach a small share of a memory's bandwidth, limited by themselves, which slower memory does not change.
        """
        placed, (_, pool) = self.device(device), self.pool_of(device)
        if (rate := self.carried_rate(device)) is not None:
            return rate
        own = placed.memory_bytes_per_s
        of_sheet = None if placed.sheet is None else device_sheet(placed.sheet).memory_bytes_per_s
        return pool.bytes_per_s if own is None or own == of_sheet or own.value == pool.bytes_per_s.value else own

    def carried_rate(self, device: str) -> Quantity | None:
        """Return the bandwidth of the chip on which an NPU was measured, if it shares another chip's memory here."""
        placed = self.device(device)
        if placed.kind != "npu" or placed.sheet is None or placed.memory_efficiency is None:
            return None
        sheet, (_, pool) = device_sheet(placed.sheet), self.pool_of(device)
        is_as_measured = placed.memory_efficiency == sheet.memory_efficiency
        is_as_measured &= placed.memory_bytes_per_s in (None, sheet.memory_bytes_per_s)
        chips_of_neighbours = (self.device(one).memory_pool for one in pool.devices if one != device)
        is_elsewhere = sheet.memory_pool not in chips_of_neighbours
        return sheet.memory_bytes_per_s if is_as_measured and is_elsewhere else None

    def link(self, start: str, end: str) -> PlacedLink:
        """Return the direct link from `start` to `end`; raises `ProfileError` without one or for an unknown device."""
        self.device(start)
        self.device(end)
        if (start, end) not in self._links:
            raise ProfileError(f"platform {self.name!r}: no link joins {start} to {end}")
        return self._links[start, end]

    def path(self, start: str, end: str, num_bytes: float = 0.0) -> tuple[str, ...]:
        """Return the devices on the fastest path of a message of `num_bytes`, both ends included.

        Raises:
            ProfileError: a device is unknown, or nothing connects the two.
        """
        asked = start, end, num_bytes
        if asked not in self._paths:
            self._paths[asked] = self._fastest(*asked)
        return self._paths[asked]

    @cached_property
    def _paths(self) -> dict[tuple[str, str, float], tuple[str, ...]]:
        """Cache of `path`: a plan asks for the same paths again and again."""
        return {}

    def _fastest(self, start: str, end: str, num_bytes: float) -> tuple[str, ...]:
        """Return the fastest path by Dijkstra's algorithm; among equals, the one whose links are listed first."""
        self.device(start)
        self.device(end)
        ways: list[tuple[float, int, tuple[str, ...]]] = [(0.0, 0, (start,))]
        known, order = set[str](), count(1)
        while ways:
            seconds, _, way = heappop(ways)
            if (last := way[-1]) == end:
                return way
            if last in known:
                continue
            known.add(last)
            for (one, other), link in self._links.items():
                if one == last:
                    heappush(ways, (seconds + link.transfer_s(num_bytes), next(order), (*way, other)))
        raise ProfileError(f"platform {self.name!r}: no link leads from {start} to {end}")

    def transfer_s(self, start: str, end: str, num_bytes: float) -> float:
        """Return seconds of a message along `path`; each link forwards it only when all of it has arrived."""
        return sum(self.link(*hop).transfer_s(num_bytes) for hop in pairwise(self.path(start, end, num_bytes)))


def load_platform(name_or_path: str | Path) -> Platform:
    """Return a platform: a shipped one by name, that of a file, or a machine made of a device (its name or sheet file).

    Raises:
        ProfileError: no platform, file or device has that name; lists the valid ones.
        ConfigError: the file is wrong; names file, line and value.
    """
    name, path = str(name_or_path), Path(name_or_path)
    if name in shipped_names("platform"):
        return load_yaml(shipped_file("platform", name), Platform)
    if os.path.isfile(path) or isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml"):  # noqa: PTH113
        return _with_own_device(path) if "kind" in _described(path) else load_yaml(path, Platform)
    if find_device(name) is not None:
        device = device_named(name)
        pool = device_sheet(device.sheet).memory_pool
        is_whole_chip = device.num_devices == 1 and device.memory_bytes is None and pool in shipped_names("platform")
        return load_platform(str(pool)) if is_whole_chip else Platform.model_validate(machine_of(device))
    names = (*shipped_names("platform"), *shipped_names("device"))
    raise ProfileError(f"{unknown('platform', name, names)} (A file's path will do; --add takes further devices.)")


def _described(path: Path) -> dict[str, Any]:
    """Return the data of a YAML file; raises `ProfileError` for a calibrated profile."""
    data = load_yaml(path, dict[str, Any])
    if str(data.get("format")).startswith("mirrorsd-profile"):
        raise ProfileError(f"{path}: is a calibrated profile, no data sheet; plan with it: --profile {path}")
    return data


def _with_own_device(path: Path) -> Platform:
    sheet = load_yaml(path, DeviceSheet)
    return validated(Platform, machine_of(NamedDevice(sheet.name), sheet), ConfigError, source=str(path))


def of_this_make(platform: Platform) -> Platform:
    """Return the platform of `platform.makes` whose instruction sets this host has; else `platform`."""
    here = {*describe_host()["instruction_sets"].split()} if platform.makes else set()
    return next((load_platform(name) for name, sets in platform.makes.items() if here == {*sets}), platform)


MODELS: Final[Mapping[Kind, type[Platform | DeviceSheet | LinkSheet]]] = {
    "platform": Platform,
    "device": DeviceSheet,
    "link": LinkSheet,
}


class Entry(NamedTuple):
    """A platform, device or link with its name: an id of what ships, or the path of a file."""

    kind: Kind
    name: str
    content: Platform | DeviceSheet | LinkSheet


def kind_of(data: Mapping[str, Any]) -> Kind:
    """Return whether a file's data describe a platform, a link or a device, judged by their fields."""
    if "devices" in data:
        return "platform"
    return "link" if {"bytes_per_s", "latency_s"} & set(data) else "device"


def shipped_entries() -> Iterator[Entry]:
    """Yield all platforms, devices and links that ship."""
    for kind, model in MODELS.items():
        yield from (Entry(kind, name, load_yaml(shipped_file(kind, name), model)) for name in shipped_names(kind))


def find_entry(name_or_path: str) -> Entry:
    """Return the platform, device or link of a name or file; raises as `load_platform`."""
    for kind, model in MODELS.items():
        if name_or_path in shipped_names(kind):
            return Entry(kind, name_or_path, load_yaml(shipped_file(kind, name_or_path), model))
    path = named_path(name_or_path)
    is_file = path.is_file() or path.suffix in (".yaml", ".yml")
    if not is_file and (device := find_device(name_or_path)) is not None:
        return Entry("device", device.sheet, device.own_sheet)
    if is_file:
        kind = kind_of(_described(path))
        return Entry(kind, name_or_path, load_yaml(path, MODELS[kind]))
    names = [name for kind in MODELS for name in shipped_names(kind)]
    raise ProfileError(f"{unknown('platform, device or link', name_or_path, names)} (Nor is there such a file.)")
