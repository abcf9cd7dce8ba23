"""The numbers of a plan that are not known exactly, by names that `--set` takes; equal parts have them together."""

from __future__ import annotations

from collections import defaultdict
from os.path import commonprefix
from typing import Final, NamedTuple

from hwprofiles.platform import Platform
from hwprofiles.quantity import Status
from planner.platform_plan.platform_plan import PlatformPlan
from sim.derived.assumption import Assumption

_AT_MOST_ONE: Final = ("efficiency", "unhidden_share", "rate", "first_alternative")
"""Ends of the names of shares."""


_LEAST: Final = 0.01
"""The least share of a number that is asked about: the ends of curves' growth may lie below nothing."""


class UncertainNumber(NamedTuple):
    """One number, of one part or of all that are equal.

    Attributes:
        field: as `--set` takes it.
        value: what it is taken to be.
        low, high: between which it lies.
        status: how it is known.
    """

    field: str
    value: float
    low: float
    high: float
    status: Status


def uncertain_numbers(plan: PlatformPlan) -> list[UncertainNumber]:
    """Return all whose ends differ, in the order of the plan's assumptions."""
    platform, found = plan.question.platform, dict[str, UncertainNumber]()
    for one in plan.assumptions:
        # what exits bring is no matter where none are there
        if one.high > one.low and one.value > 0 and (plan.question.has_exits or ".exit_coverage" not in one.field):
            most = 1.0 if one.field.endswith(_AT_MOST_ONE) else one.high
            low = max(one.low, one.value * _LEAST)
            number = UncertainNumber(name_of(platform, one), one.value, low, min(one.high, most), one.status)
            found.setdefault(number.field, number)
    return list(found.values())


def name_of(platform: Platform, one: Assumption) -> str:
    """Return the name of a number for `--set`: of all parts of a sheet that have the same one, or of its own part."""
    part, _, field = one.field.rpartition(".")
    if part in platform.devices and field == "memory_bytes_per_s":
        pool, memory = platform.pool_of(part)
        if pool in platform.memory_pools and platform.reading_peak(part) is memory.bytes_per_s:
            return f"{_pools(platform, pool)}.bytes_per_s"
    for name, parts in _classes(platform).items():
        if part in parts and len(parts) > 1 and len({getattr(own, field) for own in parts.values()}) == 1:
            return f"{name}.{field}"
    return one.field


def _classes(platform: Platform) -> dict[str, dict[str, object]]:
    """Return the parts of every sheet by their names, and before them those of links of one family."""
    families: defaultdict[str, dict[str, object]] = defaultdict(dict)
    sheets: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for link in platform.links:
        name, sheet = "-".join(link.between), str(link.sheet)
        families[f"links:{sheet.rpartition('-')[0]}"][name] = link
        sheets[f"links:{sheet}"][name] = link
    for name, device in platform.devices.items():
        sheets[f"devices:{device.sheet}"][name] = device
    of_several = {name: parts for name, parts in families.items() if parts not in sheets.values()}
    return {name: parts for name, parts in (of_several | sheets).items() if not name.endswith((":", ":None"))}


def _pools(platform: Platform, name: str) -> str:
    """Return a pattern of all memories that are as fast as one, where it names no other; else its name."""
    rate = platform.memory_pools[name].bytes_per_s
    alike = [pool for pool, memory in platform.memory_pools.items() if memory.bytes_per_s == rate]
    start = commonprefix(alike)  # noqa: RUF071  of names, not of paths
    others = [*(set(platform.memory_pools) - set(alike)), *platform.devices]
    is_told = len(alike) > 1 and start and not any(other.startswith(start) for other in others)
    return f"{start}*" if is_told else name
