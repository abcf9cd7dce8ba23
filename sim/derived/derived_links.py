"""Latency and bandwidth between the devices of a platform, from the data sheets of its links."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from hwprofiles.platform import Platform
from hwprofiles.profile import LinkProfile
from sim.derived.assumption import Assumption

NO_COPY_BYTES_PER_S: Final = 1e18


def path_speed(platform: Platform, start: str, end: str, *, collective: bool = False) -> tuple[float, float]:
    """Return (latency in s, bytes/s) of the fastest path of a megabyte between two devices.

    `collective`: with the latency of a step of a collective instead of a message's.
    """
    num_bytes = 1e6
    links = [platform.link(*hop) for hop in pairwise(platform.path(start, end, num_bytes))]
    latency_s = sum(link.step_s.value if collective and link.step_s else link.transfer_s(0.0) for link in links)
    per_byte_s = sum(link.transfer_s(num_bytes) - link.transfer_s(0.0) for link in links) / num_bytes
    return latency_s, 1 / per_byte_s if per_byte_s else float("inf")


def links_of(platform: Platform, pairs: Iterable[tuple[str, str]]) -> Iterator[LinkProfile]:
    """Yield the link of each pair of lanes, and that of the opposite direction if it differs."""
    for pair in pairs:
        there, back = (_link(platform, *ends) for ends in (pair, pair[::-1]))
        yield there
        if (back.latency_s, back.bytes_per_s) != (there.latency_s, there.bytes_per_s):
            yield back


def _link(platform: Platform, one: str, other: str) -> LinkProfile:
    ends = platform.members(one)[0], platform.members(other)[0]
    latency_s, bytes_per_s = path_speed(platform, *ends)
    return LinkProfile(
        lanes=(one, other),
        latency_s=latency_s,
        bytes_per_s=min(bytes_per_s, NO_COPY_BYTES_PER_S),
        source=f"links of {platform.name}: {' - '.join(platform.path(*ends))}",
    )


def numbers_of_links(platform: Platform, pairs: Iterable[tuple[str, str]]) -> Iterator[Assumption]:
    """Yield the numbers of all links on the paths between each pair of lanes, in both directions."""
    for one, other in (ways for pair in pairs for ways in (pair, pair[::-1])):
        for hop in pairwise(platform.path(platform.members(one)[0], platform.members(other)[0])):
            link = platform.link(*hop)
            for name, found in link.quantities.items():
                yield Assumption.of_quantity(f"{'-'.join(link.between)}.{name}", found)
