"""A platform: its devices, the memories they share, and how they are linked, as a graph (docs/platforms.md).

Fields that a device or a link does not give are those of its sheet (`hwprofiles.platform_parts`).
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
"""Ends the name of a lane that is a second stream of work on a device."""


class Platform(Priced):
    """Devices, memories and links of one machine or cluster.

    Attributes:
        devices: by the names that schedules and overrides call them.
        memory_pools: memories that several devices share, by name; other devices have their own.
        host: what added devices are linked to; None: all devices. The driver runs next to the target, wherever that is.
        groups: devices that work on one model as tensor-parallel ranks, by the group's name.
        lanes: what `mirrorsd run` calls devices and groups; it cannot run others.
        makes: shipped platforms that replace this one where this host's CPU has just their instruction sets, of those
            that `hwprofiles.host` looks for.
        price_usd_per_hour, price_usd, write_off_s: of the whole machine, where devices have no prices of their own.
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
        """One line: the numbers would fill pages."""
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
        """Return a device; `ProfileError` where there is none of that name."""
        if name not in self.devices:
            raise ProfileError(f"platform {self.name!r} has no device {name!r}; it has {', '.join(self.devices)}")
        return self.devices[name]

    def members(self, name: str) -> tuple[str, ...]:
        """Return the devices of a group, of a split, of a device or of a second stream on it.

        Raises `ProfileError` if there is none of that name.
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
        devices, others = self.members(one), self.members(other)
        cores, other_cores = ({core for name in own for core in self.devices[name].cores} for own in (devices, others))
        return not {*devices} & {*others} and not cores & other_cores

    def lane_name(self, name: str) -> str:
        """Return what `mirrorsd run` calls a device, a group or a second stream; without an entry its own name."""
        device = name.removesuffix(SECOND_STREAM)
        return self.lanes.get(device, device) + name[len(device) :]

    def pool_of(self, device: str) -> tuple[str, MemoryPool]:
        """Return the memory that a device reads and its name: one of `memory_pools`, or its own by its own name.

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
        """Return whether a device has a memory of its own: it is no part of a chip and in no pool with others."""
        pools = (pool for pool in self.memory_pools.values() if device in pool.devices)
        return self.device(device).memory_pool is None and all(len(pool.devices) == 1 for pool in pools)

    def own_part(self, device: str) -> Quantity | None:
        """Return the part of a shared memory that a device has for itself, as set in a BIOS; None where it has none.

        It is the device's own capacity where that is another one than its sheet's, which is that of the whole memory.
        """
        placed, (name, pool) = self.device(device), self.pool_of(device)
        own = placed.memory_bytes
        of_sheet = None if placed.sheet is None else device_sheet(placed.sheet).memory_bytes
        is_whole = (
            own is None or own == of_sheet or (pool.memory_bytes is not None and own.value >= pool.memory_bytes.value)
        )
        return None if name == device or is_whole else own

    def room_of(self, device: str) -> str:
        """Return the name of the memory that has to hold what a device reads: its own part of a shared one, if any."""
        return device if self.own_part(device) is not None else self.pool_of(device)[0]

    def reading_peak(self, device: str) -> Quantity:
        """Return the bandwidth of which a device's efficiency is a share; errors are those of `pool_of`.

        It is the device's own where the platform gives another one than its memory's: a sheet tells the bandwidth of
        the memory that its chip shares, which a pool describes here. Of an NPU in another chip's memory it is the
        sheet's: NPUs read a small share of a memory, which is a rate of theirs that a slower memory does not change.
        """
        placed, (_, pool) = self.device(device), self.pool_of(device)
        if (rate := self.carried_rate(device)) is not None:
            return rate
        own = placed.memory_bytes_per_s
        of_sheet = None if placed.sheet is None else device_sheet(placed.sheet).memory_bytes_per_s
        return pool.bytes_per_s if own is None or own == of_sheet or own.value == pool.bytes_per_s.value else own

    def carried_rate(self, device: str) -> Quantity | None:
        """Return the bandwidth of the chip on which an NPU was measured, if it shares another one's memory here."""
        placed = self.device(device)
        if placed.kind != "npu" or placed.sheet is None or placed.memory_efficiency is None:
            return None
        sheet, (_, pool) = device_sheet(placed.sheet), self.pool_of(device)
        is_as_measured = placed.memory_efficiency == sheet.memory_efficiency
        is_as_measured &= placed.memory_bytes_per_s in (None, sheet.memory_bytes_per_s)
        others = (self.device(one).memory_pool for one in pool.devices if one != device)
        is_elsewhere = sheet.memory_pool not in others
        return sheet.memory_bytes_per_s if is_as_measured and is_elsewhere else None

    def link(self, start: str, end: str) -> PlacedLink:
        """Return the link from one device straight to another; `ProfileError` if there is none, or no such device."""
        self.device(start)
        self.device(end)
        if (start, end) not in self._links:
            raise ProfileError(f"platform {self.name!r}: no link joins {start} to {end}")
        return self._links[start, end]

    def path(self, start: str, end: str, num_bytes: float = 0.0) -> tuple[str, ...]:
        """Return the devices on the fastest way of a message of that size, both ends included.

        Raises:
            ProfileError: a device is unknown, or nothing connects the two.
        """
        asked = start, end, num_bytes
        if asked not in self._paths:
            self._paths[asked] = self._fastest(*asked)
        return self._paths[asked]

    @cached_property
    def _paths(self) -> dict[tuple[str, str, float], tuple[str, ...]]:
        """Paths that were asked for: a plan asks for the same ones again and again."""
        return {}

    def _fastest(self, start: str, end: str, num_bytes: float) -> tuple[str, ...]:
        """Return the way by Dijkstra's algorithm; of equal ways that of the links named first."""
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
        """Return seconds of a message between two devices, which each link passes on whole; errors as in `path`."""
        return sum(self.link(*hop).transfer_s(num_bytes) for hop in pairwise(self.path(start, end, num_bytes)))


def load_platform(name_or_path: str | Path) -> Platform:
    """Return a shipped platform by its name, one's own by the path of its file, or a machine made of a device.

    A device is named, or is the sheet in a file.

    Raises:
        ProfileError: neither a platform, a file nor a device is called so; lists those there are.
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
    """Return the data of a file; raises `ProfileError` where a calibration wrote them."""
    data = load_yaml(path, dict[str, Any])
    if str(data.get("format")).startswith("mirrorsd-profile"):
        raise ProfileError(f"{path}: is a calibrated profile, no data sheet; plan with it: --profile {path}")
    return data


def _with_own_device(path: Path) -> Platform:
    sheet = load_yaml(path, DeviceSheet)
    return validated(Platform, machine_of(NamedDevice(sheet.name), sheet), ConfigError, source=str(path))


def of_this_make(platform: Platform) -> Platform:
    """Return the platform's make whose instruction sets are this host's; else the platform itself."""
    here = {*describe_host()["instruction_sets"].split()} if platform.makes else set()
    return next((load_platform(name) for name, sets in platform.makes.items() if here == {*sets}), platform)


MODELS: Final[Mapping[Kind, type[Platform | DeviceSheet | LinkSheet]]] = {
    "platform": Platform,
    "device": DeviceSheet,
    "link": LinkSheet,
}


class Entry(NamedTuple):
    """A platform, device or link that ships, by its name, or that a file describes, by its path."""

    kind: Kind
    name: str
    content: Platform | DeviceSheet | LinkSheet


def kind_of(data: Mapping[str, Any]) -> Kind:
    """Return what the data of a file describe, by their fields."""
    if "devices" in data:
        return "platform"
    return "link" if {"bytes_per_s", "latency_s"} & set(data) else "device"


def shipped_entries() -> Iterator[Entry]:
    """Yield all platforms, devices and links that ship."""
    for kind, model in MODELS.items():
        yield from (Entry(kind, name, load_yaml(shipped_file(kind, name), model)) for name in shipped_names(kind))


def find_entry(name_or_path: str) -> Entry:
    """Return the platform, device or link of a name or a file; errors are those of `load_platform`."""
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
