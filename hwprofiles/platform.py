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

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, model_validator

from decoding.errors import ProfileError
from decoding.yaml_file import load_yaml
from hwprofiles.sheets import DeviceSheet, LinkSheet, device_names, device_sheet, link_names, link_sheet

_FOLDER = Path(__file__).parent / "platforms"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlacedDevice(_Strict):
    """A device of a platform and the sheet that describes it."""

    sheet: str

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.sheet not in device_names():
            msg = f"no device sheet is called {self.sheet!r}; there are {', '.join(device_names())}"
            raise ValueError(msg)
        return self


class PlacedLink(_Strict):
    """A link between two devices of a platform; both directions alike."""

    between: tuple[str, str]
    sheet: str | None = None
    latency_s: Annotated[float, Field(ge=0)] | None = None
    bytes_per_s: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.sheet is not None and self.sheet not in link_names():
            msg = f"no link sheet is called {self.sheet!r}; there are {', '.join(link_names())}"
            raise ValueError(msg)
        if self.between[0] == self.between[1]:
            msg = f"a link joins two different devices, not {self.between[0]} and itself"
            raise ValueError(msg)
        if self._latency_s is None:
            msg = f"the link {' - '.join(self.between)} has no latency: its sheet gives none, so give latency_s here"
            raise ValueError(msg)
        return self

    @property
    def _sheet(self) -> LinkSheet:
        return link_sheet(self.sheet) if self.sheet is not None else LinkSheet(name="(own numbers)")

    @property
    def _latency_s(self) -> float | None:
        published = self._sheet.latency_s
        return self.latency_s if self.latency_s is not None else published.value if published else None

    def transfer_s(self, num_bytes: float) -> float:
        """Seconds for one message: latency, and bytes over bandwidth unless nothing is copied."""
        assert self._latency_s is not None
        published = self._sheet.bytes_per_s
        rate = self.bytes_per_s if self.bytes_per_s is not None else published.value if published else None
        return self._latency_s + (num_bytes / rate if rate is not None else 0.0)


class Platform(_Strict):
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
        sheet: DeviceSheet = self.graph.nodes[device]["sheet"]
        return sheet

    def path(self, start: str, end: str, num_bytes: float = 0.0) -> tuple[str, ...]:
        """The devices a message of that size passes on its fastest way, both ends included.

        Raises:
            ProfileError: a device is unknown, or nothing connects the two.
        """
        self._require(start)
        self._require(end)

        def cost(_left: str, _right: str, edge: Mapping[str, PlacedLink]) -> float:
            return edge["link"].transfer_s(num_bytes)

        try:
            return tuple(nx.dijkstra_path(self.graph, start, end, weight=cost))
        except nx.NetworkXNoPath as error:
            msg = f"platform {self.name!r}: no link leads from {start} to {end}"
            raise ProfileError(msg) from error

    def transfer_s(self, start: str, end: str, num_bytes: float) -> float:
        """Seconds for a message between two devices; each link passes it on whole. Zero on one device.

        Raises:
            ProfileError: as in `path`.
        """
        return sum(link.transfer_s(num_bytes) for link in self._links(self.path(start, end, num_bytes)))

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

    def _links(self, path: Sequence[str]) -> Iterator[PlacedLink]:
        for left, right in pairwise(path):
            yield self.graph.edges[left, right]["link"]

    def _require(self, device: str) -> None:
        if device not in self.devices:
            msg = f"platform {self.name!r} has no device {device!r}; it has {', '.join(self.devices)}"
            raise ProfileError(msg)


def platform_names() -> tuple[str, ...]:
    """Ids of the shipped platforms."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def shipped_platform(name: str) -> Platform:
    """A platform shipped here.

    Raises:
        ProfileError: there is none of that name; lists those there are.
    """
    if name not in platform_names():
        msg = f"no platform is called {name!r}; there are {', '.join(platform_names())}"
        raise ProfileError(msg)
    return load_platform(_FOLDER / f"{name}.yaml")


def load_platform(path: str | Path) -> Platform:
    """Read a platform YAML.

    Raises:
        ConfigError: the file is missing or wrong; names file, line and value.
    """
    return load_yaml(path, Platform)
