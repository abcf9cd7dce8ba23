"""The machine of a plan: its devices, the memories that they share, what they hold, and what crosses their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from markupsafe import Markup

from hwprofiles.platform import Platform
from planner.page_template import page_template
from planner.wording import si

_ROW: Final = 58
_LINE: Final = 16
_BOX_LEFT, _BOX_WIDTH, _WIDTH = 22, 300, 640
_MOST_DEVICES: Final = 6


def machine_picture(
    platform: Platform, holds: Mapping[str, Sequence[str]], crossing_bytes: Mapping[frozenset[str], float]
) -> Markup:
    """Return devices below each other, a bracket for each memory, and links as arcs.

    Args:
        platform: the machine; of many devices those that hold a model and their nearest neighbours are shown.
        holds: what a device holds, a line each.
        crossing_bytes: bytes of a round over the link between two devices.
    """
    names = _shown(platform, holds)
    row = _ROW + _LINE * (max(map(len, holds.values()), default=1) - 1)
    middle = {name: row * index + row / 2 for index, name in enumerate(names)}
    links = [link for link in platform.links if set(link.between) <= set(names)]
    links.sort(key=lambda link: abs(middle[link.between[0]] - middle[link.between[1]]))
    arcs: list[dict[str, object]] = []
    named = set[str]()
    for depth, link in enumerate(links):
        one, other = sorted(middle[end] for end in link.between)
        crossing = crossing_bytes.get(frozenset(link.between), 0.0)
        name = link.sheet or "link"
        arcs.append(
            {
                "is_named": crossing > 0 or name not in named,
                "top": one,
                "bottom": other,
                "x": _BOX_LEFT + _BOX_WIDTH + 16 + 14 * depth,
                "is_used": crossing > 0,
                "name": name,
                "speed": ", ".join(
                    si(number.value, unit)
                    for number, unit in ((link.bytes_per_s, "B/s"), (link.latency_s, "s"))
                    if number is not None
                ),
                "bytes": f"{si(crossing, 'B')} a round" if crossing else "",
            }
        )
        named.add(name)
    svg = page_template(Path(__file__).with_name("machine_picture.svg"), {}).render(
        width=_WIDTH,
        height=row * len(names),
        row=row,
        line=_LINE,
        box_left=_BOX_LEFT,
        box_width=_BOX_WIDTH,
        devices=[
            {
                "top": row * index + 6,
                "name": name,
                "sheet": platform.device(name).name,
                "holds": holds.get(name, ()),
            }
            for index, name in enumerate(names)
        ],
        memories=_memories(platform, names, middle),
        arcs=arcs,
        label_x=_BOX_LEFT + _BOX_WIDTH + 30 + 14 * len(arcs),
        num_left_out=len(platform.devices) - len(names),
    )
    return Markup(svg)  # noqa: S704  the template escapes what it shows


def _shown(platform: Platform, holds: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the devices to draw, those of one memory next to each other, what holds a model first."""
    names = sorted(platform.devices, key=lambda name: name not in holds)[:_MOST_DEVICES]
    memory_of = _memory_of(platform)
    pools = list(dict.fromkeys(memory_of.get(name) or name for name in names))
    return sorted(names, key=lambda name: pools.index(memory_of.get(name) or name))


def _memory_of(platform: Platform) -> dict[str, str]:
    return {device: pool for pool, memory in platform.memory_pools.items() for device in memory.devices}


def _memories(platform: Platform, names: list[str], middle: Mapping[str, float]) -> list[dict[str, float]]:
    """Return a bracket for every memory that several of the devices share."""
    members: dict[str, list[float]] = {}
    for name, memory in _memory_of(platform).items():
        if name in names:
            members.setdefault(memory, []).append(middle[name])
    return [{"top": min(ends) - 20, "bottom": max(ends) + 20} for ends in members.values() if len(ends) > 1]
