"""Sheets and platforms in words, at most 80 columns wide: every number with its status and its source."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from hwprofiles.platform import Platform
from hwprofiles.sheets import DeviceSheet, Sourced
from planner.wording import amount

if TYPE_CHECKING:
    from hwprofiles.platform import Entry
    from hwprofiles.quantity import Quantity

WIDTH: Final = 80


def entry_text(entry: Entry) -> str:
    """A platform, a device or a link with all its numbers; parts of a platform that are alike are told once."""
    content = entry.content
    lines = _platform(content) if isinstance(content, Platform) else _part(content)
    return "\n".join([*_wrapped(f"{entry.kind} {entry.name}", indent=0), *lines])


def _platform(platform: Platform) -> Iterator[str]:
    yield from _part(platform)
    if platform.host is not None:
        yield f"  {'driver on':<24}{platform.host}"
    for name, members in platform.groups.items():
        yield from _wrapped(f"{'group ' + name:<24}{', '.join(members)}")
    for heading, parts in _parts(platform).items():
        for names, part in _alike(parts):
            yield ""
            yield from _wrapped(f"{heading} {', '.join(names)}", indent=0)
            yield from _part(part)


def _part(part: Sourced) -> Iterator[str]:
    """What a part is called by those who make it, its numbers, and its facts."""
    kind = f" ({part.kind})" if isinstance(part, DeviceSheet) else ""
    yield from _wrapped(f"{getattr(part, 'name', '')}{kind}")
    for field, quantity in part.quantities.items():
        yield f"  {field:<24}{_value(field, quantity):<40}{quantity.status}"
        yield from _wrapped(_origin(quantity), indent=6)
    if isinstance(part, DeviceSheet):
        yield from _facts(part)


def _parts(platform: Platform) -> dict[str, dict[str, Sourced]]:
    return {
        "device": dict(platform.devices),
        "memory pool": {f"{name} of {', '.join(pool.devices)}": pool for name, pool in platform.memory_pools.items()},
        "link": {(" -> " if link.one_way else " - ").join(link.between): link for link in platform.links},
    }


def _alike(parts: Mapping[str, Sourced]) -> list[tuple[list[str], Sourced]]:
    """Parts of which all is the same but where they are, with the names of all of them."""
    groups: list[tuple[list[str], Sourced]] = []
    for name, part in parts.items():
        same = next((names for names, other in groups if _content(other) == _content(part)), None)
        if same is None:
            groups.append(([name], part))
        else:
            same.append(name)
    return groups


def _content(part: Sourced) -> dict[str, Any]:
    return part.model_dump(exclude={"between", "devices"})


def _value(field: str, quantity: Quantity) -> str:
    text = amount(field, quantity.value)
    if quantity.span is None:
        return text
    low, high = (amount(field, end) for end in quantity.span)
    number, _, unit = low.partition(" ")
    return f"{text} ({number if high.endswith(f' {unit}') else low} to {high})"


def _origin(quantity: Quantity) -> str:
    by = f"by {quantity.by}: " if quantity.by is not None else ""
    day = f" ({quantity.as_of})" if quantity.as_of is not None else ""
    return f"{by}{quantity.source}{day}"


def _facts(device: DeviceSheet) -> Iterator[str]:
    """What a device says that is no number with an origin of its own."""
    facts = {
        "memory shared as": device.memory_pool,
        "power of": "its package" if device.power_of == "package" else None,
        "dispatch of": device.dispatch_of,
        "shapes": "compiled before" if device.static_shapes else None,
        "row buckets": ", ".join(map(str, device.row_buckets)),
        "max. prompt tokens": device.max_prompt_tokens,
        "weight formats": ", ".join(device.weight_formats),
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:<24}{value}"
    if device.facts_source is not None:
        yield from _wrapped(device.facts_source, indent=6)


def _wrapped(text: str, *, indent: int = 2) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
