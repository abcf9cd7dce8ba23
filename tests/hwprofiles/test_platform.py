from pathlib import Path

import networkx as nx
import pytest

from decoding.errors import ConfigError, ProfileError
from decoding.yaml_file import load_yaml
from hwprofiles.platform import PlacedDevice, PlacedLink, Platform, shipped_platform
from hwprofiles.sheets import shipped_names


def link(left: str, right: str, latency_s: float, bytes_per_s: float | None = None) -> PlacedLink:
    return PlacedLink(between=(left, right), latency_s=latency_s, bytes_per_s=bytes_per_s)


def platform(*links: PlacedLink) -> Platform:
    devices = {name: PlacedDevice(sheet="generic-cpu") for name in ("a", "b", "c")}
    return Platform(name="test", devices=devices, links=links)


def test_a_transfer_costs_latency_and_bytes_on_every_link_of_its_path() -> None:
    machine = platform(link("a", "b", 1.0, 10.0), link("b", "c", 2.0, 5.0))
    assert machine.path("a", "c") == ("a", "b", "c")
    assert machine.transfer_s("a", "c", 20.0) == (1 + 20 / 10) + (2 + 20 / 5)
    assert machine.transfer_s("c", "a", 20.0) == machine.transfer_s("a", "c", 20.0)
    assert machine.transfer_s("a", "a", 20.0) == 0


def test_the_fastest_way_depends_on_the_size_of_the_message() -> None:
    short_but_narrow = link("a", "c", 1.0, 1.0)
    machine = platform(short_but_narrow, link("a", "b", 1.0, 100.0), link("b", "c", 1.0, 100.0))
    assert machine.path("a", "c", 0) == ("a", "c")
    assert machine.path("a", "c", 50) == ("a", "b", "c")


def test_unified_memory_copies_nothing() -> None:
    machine = shipped_platform("lunar-lake")
    assert machine.transfer_s("gpu", "npu", 0) == machine.transfer_s("gpu", "npu", 1e9)
    assert machine.memory_pools() == {"lunar-lake:gpu": ("gpu", "npu")}


def test_chips_of_one_kind_do_not_share_a_memory() -> None:
    pools = shipped_platform("m2-ultra-x8").memory_pools()
    assert sorted(pools.values()) == [(f"gpu{chip}", f"npu{chip}") for chip in range(8)]


@pytest.mark.parametrize("name", shipped_names("platform"))
def test_shipped_platforms_are_connected(name: str) -> None:
    graph = shipped_platform(name).graph
    assert nx.is_connected(graph)
    assert all(graph.nodes[device]["sheet"].memory_bytes_per_s for device in graph)


def test_devices_without_a_way_between_them_and_unknown_ones_are_errors() -> None:
    machine = platform(link("a", "b", 1.0))
    with pytest.raises(ProfileError, match="no link leads from a to c"):
        machine.transfer_s("a", "c", 1)
    with pytest.raises(ProfileError, match="no device 'd'; it has a, b, c"):
        machine.path("a", "d")
    with pytest.raises(ProfileError, match="no platform is called 'cray'; there are .*strix-halo"):
        shipped_platform("cray")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{a: {sheet: h101}}", "no device sheet is called 'h101'"),
        ("{a: {sheet: l40s}}\nlinks: [{between: [a, z], latency_s: 1.0}]", "names the device 'z'; devices are a"),
        ("{a: {sheet: l40s}}\nlinks: [{between: [a, a], latency_s: 1.0}]", "two different devices"),
        ("{a: {sheet: l40s}, b: {sheet: l40s}}\nlinks: [{between: [a, b], sheet: hccs-910b}]", "has no latency"),
        ("{a: {sheet: l40s}, b: {sheet: l40s}}\nlinks: [{between: [a, b], sheet: rope}]", "no link sheet .* 'rope'"),
    ],
)
def test_a_wrong_platform_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(f"name: wrong\ndevices: {text}\n")
    with pytest.raises(ConfigError, match=rf"machine\.yaml:\d+:\d+: .*{complaint}"):
        load_yaml(path, Platform)
