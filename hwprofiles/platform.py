"""A platform: which devices there are and how they are linked, as a graph.

::

    name: two GPUs and an NPU
    devices:
      gpu0: {sheet: h100-sxm}
      npu0: {sheet: lunar-lake-npu4}
    links:
      - {between: [gpu0, npu0], sheet: pcie-5-x16, latency_s: 5.0e-6}

A link takes its numbers from a shipped sheet, from its own fields, or both (own fields win).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import networkx as nx
from pydantic import AfterValidator, Field, model_validator

from decoding.errors import ProfileError
from decoding.yaml_file import StrictModel, load_yaml
from hwprofiles.bounds import BytesPerSecond, Seconds
from hwprofiles.sheets import DeviceSheet, Quantity, device_sheet, link_sheet, shipped_file, shipped_names


def _known_sheet(kind: Literal["device", "link"]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in (names := shipped_names(kind)):
            msg = f"no {kind} sheet is called {name!r}; there are {', '.join(names)}"
            raise ValueError(msg)
        return name

    return AfterValidator(check)


class PlacedDevice(StrictModel):
    """A device of a platform and the sheet that describes it."""

    sheet: Annotated[str, _known_sheet("device")]


class PlacedLink(StrictModel):
    """A link between two devices of a platform; both directions alike."""

    between: tuple[str, str]
    sheet: Annotated[str, _known_sheet("link")] | None = None
    latency_s: Seconds | None = None
    bytes_per_s: BytesPerSecond | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.between[0] == self.between[1]:
            msg = f"a link joins two different devices, not {self.between[0]} and itself"
            raise ValueError(msg)
        if self._number("latency_s") is None:
            msg = f"the link {' - '.join(self.between)} has no latency: its sheet gives none, so give latency_s here"
            raise ValueError(msg)
        return self

    def transfer_s(self, num_bytes: float) -> float:
        """Seconds for one message: latency, and bytes over bandwidth unless nothing is copied."""
        latency_s, rate = self._number("latency_s"), self._number("bytes_per_s")
        assert latency_s is not None
        return latency_s + (num_bytes / rate if rate is not None else 0.0)

    def _number(self, field: Literal["latency_s", "bytes_per_s"]) -> float | None:
        own: float | None = getattr(self, field)
        if own is not None or self.sheet is None:
            return own
        published: Quantity | None = getattr(link_sheet(self.sheet), field)
        return published.value if published is not None else None


class Platform(StrictModel):
    """Devices and links of one machine or cluster."""

    name: str
    devices: Annotated[Mapping[str, PlacedDevice], Field(min_length=1)]
    links: tuple[PlacedLink, ...] = ()

    @model_validator(mode="after")
    def _known_ends(self) -> Self:
        for link in self.links:
            for end in link.between:
                if end not in self.devices:
                    msg = f"a link names the device {end!r}; devices are {', '.join(self.devices)}"
                    raise ValueError(msg)
        return self

    @cached_property
    def graph(self) -> Any:
        """Undirected networkx graph: nodes carry `sheet` (`DeviceSheet`), edges `link` (`PlacedLink`)."""
        graph = nx.Graph(name=self.name)
        graph.add_nodes_from((name, {"sheet": device_sheet(placed.sheet)}) for name, placed in self.devices.items())
        graph.add_edges_from((*link.between, {"link": link}) for link in self.links)
        return graph

    def sheet(self, device: str) -> DeviceSheet:
        """Data sheet of a device.

        Raises:
            ProfileError: the platform has no such device.
        """
        self._require(device)
        return device_sheet(self.devices[device].sheet)

    def path(self, start: str, end: str, num_bytes: float = 0.0) -> tuple[str, ...]:
        """The devices a message of that size passes on its fastest way, both ends included.

        Raises:
            ProfileError: a device is unknown, or nothing connects the two.
        """
        return tuple(self._fastest(start, end, num_bytes)[1])

    def transfer_s(self, start: str, end: str, num_bytes: float) -> float:
        """Seconds for a message between two devices; each link passes it on whole. Zero on one device.

        Raises:
            ProfileError: as in `path`.
        """
        return self._fastest(start, end, num_bytes)[0]

    def _fastest(self, start: str, end: str, num_bytes: float) -> tuple[float, list[str]]:
        """Seconds and way of a message."""
        self._require(start)
        self._require(end)

        def cost(_left: str, _right: str, edge: Mapping[str, PlacedLink]) -> float:
            return edge["link"].transfer_s(num_bytes)

        try:
            seconds, way = nx.single_source_dijkstra(self.graph, start, end, weight=cost)
        except nx.NetworkXNoPath as error:
            msg = f"platform {self.name!r}: no link leads from {start} to {end}"
            raise ProfileError(msg) from error
        return seconds, way

    def memory_pools(self) -> dict[str, tuple[str, ...]]:
        """Devices by the memory they share; a device with memory of its own is not listed.

        Devices share one only if they are one chip: same pool name and joined by unified memory.
        """
        unified = [link.between for link in self.links if link.sheet == "unified-memory"]
        chips = nx.Graph(unified)
        pools = {}
        for members in nx.connected_components(chips):
            names = tuple(name for name in self.devices if name in members)
            pool = self.sheet(names[0]).memory_pool
            if pool is not None and all(self.sheet(name).memory_pool == pool for name in names):
                pools[f"{pool}:{names[0]}"] = names
        return pools

    def _require(self, device: str) -> None:
        if device not in self.devices:
            msg = f"platform {self.name!r} has no device {device!r}; it has {', '.join(self.devices)}"
            raise ProfileError(msg)


def shipped_platform(name: str) -> Platform:
    """A platform shipped here.

    Raises:
        ProfileError: there is none of that name; lists those there are.
    """
    return load_yaml(shipped_file("platform", name), Platform)
