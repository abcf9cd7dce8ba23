"""Rules for common mistakes in hardware numbers: wrong units, sparse peaks, both directions of a link added up.

A number without a suspicion may still be wrong. `hwprofiles.lint` reads the files and finds the lines.
"""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Final, NamedTuple

import networkx as nx

from hwprofiles.platform import Platform
from hwprofiles.quantity import UNSOURCED, Quantity
from hwprofiles.sheets import DeviceSheet, LinkSheet, device_sheet, link_sheet, shipped_names

Place = tuple[str | int, ...]
"""Keys and indices that lead to a number in its file."""

TOLERANCE: Final = 0.02
"""Relative difference below which published (rounded) numbers count as equal."""
INT8_OVER_BF16: Final = (1.0, 4.2)
"""Plausible ratio of the dense int8 and bf16 peaks: usually 2, and 4 if fp32 accumulation halves the latter."""
CHIP_TOLERANCE: Final = 0.1
"""Relative difference below which a number counts as the sum of all engines of a chip."""
BINARY: Final = {"2^30 used as giga?": 2**30 / 1e9, "2^40 used as tera?": 2**40 / 1e12}
"""Factors of mixing binary and decimal prefixes, by the question that ends the suspicion."""

PLAUSIBLE: Final[Mapping[str, tuple[float, float, str]]] = {
    "dispatch_s": (1e-7, 5e-3, "milli- and microseconds mixed?"),
    "latency_s": (1e-8, 5e-3, "milli- and microseconds mixed?"),
    "memory_bytes_per_s": (1e9, 1.2e13, "other units than bytes per second?"),
    "memory_cap_bytes_per_s": (1e8, 1.2e13, "other units than bytes per second?"),
    "int8_cap_bytes_per_s": (1e8, 1.2e13, "other units than bytes per second?"),
    "int4_cap_bytes_per_s": (1e8, 1.2e13, "other units than bytes per second?"),
    "bytes_per_s": (1e8, 1.2e13, "other units than bytes per second?"),
    "memory_bytes": (1e8, 1e13, "other units than bytes?"),
    "bf16_flops": (1e10, 2e16, "other units than FLOP/s?"),
    "int8_ops": (1e10, 4e16, "other units than operations per second?"),
    "fp8_flops": (1e10, 4e16, "other units than FLOP/s?"),
    "fp4_flops": (1e10, 8e16, "other units than FLOP/s?"),
    "power_w": (0.1, 5e3, "milliwatts or kilowatts?"),
    "price_usd_per_hour": (1e-3, 1e3, "another currency, or another time than an hour?"),
}
"""Range of each field over all known devices and links, with some margin, and what a number outside suggests."""


class Suspicion(NamedTuple):
    """What may be wrong with one number: its place in the file, a sentence (`what`), and the number, if there is one.

    `is_binary`: a binary prefix (2^30) seems to have been used for a decimal one.
    """

    place: Place
    what: str
    value: float | None = None
    is_binary: bool = False


def of_device(sheet: DeviceSheet, reference: DeviceSheet | None = None) -> Iterator[Suspicion]:
    """Yield suspicions about a device; `reference` is a trusted sheet of the same one."""
    yield from _of_quantities(sheet.quantities)
    flops, ops = sheet.bf16_flops, sheet.int8_ops
    if flops is not None and ops is not None:
        ratio = ops.highest / flops.highest
        if not INT8_OVER_BF16[0] <= ratio <= INT8_OVER_BF16[1]:
            what = f"int8_ops over bf16_flops is {ratio:.2g}, usually 2: is one of them sparse?"
            yield Suspicion(("int8_ops",), what, ops.value)
    if sheet.flops_efficiency is not None and flops is not None and flops.status == "measured":
        what = "bf16_flops is what was reached already: an efficiency counts it twice"
        yield Suspicion(("flops_efficiency",), what, sheet.flops_efficiency.value)
    cap, memory = sheet.memory_cap_bytes_per_s, sheet.memory_bytes_per_s
    if cap is not None and memory is not None and cap.value > memory.value * (1 + TOLERANCE):
        what = f"the device's own cap is above the {memory.value:g} of its memory"
        yield Suspicion(("memory_cap_bytes_per_s",), what, cap.value)
    if sheet.kind != "cpu" and flops is None:
        yield Suspicion(("bf16_flops",), f"a {sheet.kind} without it is refused: give its dense half-precision peak")
    has_facts = sheet.static_shapes or sheet.max_prompt_tokens is not None or sheet.weight_formats
    if has_facts and sheet.facts_source is None:
        yield Suspicion(("facts_source",), "static shapes, prompt limits and weight formats need a source")
    if reference is not None:
        chip = [one for one in map(device_sheet, shipped_names("device")) if one.memory_pool == reference.memory_pool]
        chip_ops = sum(one.int8_ops.value for one in chip if one.int8_ops is not None)
        twice, total = "a sparse figure listed as dense?", None if reference.memory_pool is None else chip_ops
        yield from _beyond("bf16_flops", flops, reference.bf16_flops, twice=twice, total=total)
        yield from _beyond("int8_ops", ops, reference.int8_ops, twice=twice, total=total)
        for name in ("fp8_flops", "fp4_flops"):
            yield from _beyond(name, getattr(sheet, name), getattr(reference, name), twice=twice)
        yield from _beyond("memory_bytes_per_s", memory, reference.memory_bytes_per_s)
        yield from _beyond("memory_bytes", sheet.memory_bytes, reference.memory_bytes)


def of_link(sheet: LinkSheet, reference: LinkSheet | None = None) -> Iterator[Suspicion]:
    """Yield suspicions about a link; `reference` is a trusted sheet of the same one."""
    yield from _of_quantities(sheet.quantities)
    if reference is not None:
        yield from _beyond("bytes_per_s", sheet.bytes_per_s, reference.bytes_per_s, twice="both directions added up?")


def of_platform(platform: Platform) -> Iterator[Suspicion]:
    """Yield suspicions about a platform and its parts; each part is compared with the shipped sheet that it names."""
    yield from _of_quantities(platform.quantities)
    for name, device in platform.devices.items():
        known = None if device.sheet is None else device_sheet(device.sheet)
        yield from _below(("devices", name), of_device(device, known))
    for index, link in enumerate(platform.links):
        way = None if link.sheet is None else link_sheet(link.sheet)
        yield from _below(("links", index), of_link(link, way))
    yield from _of_memories(platform)
    yield from _of_ways(platform)


def _of_quantities(quantities: Mapping[str, Quantity]) -> Iterator[Suspicion]:
    for field, one in quantities.items():
        low, high, suggestion = PLAUSIBLE.get(field, (0.0, inf, ""))
        is_measured, value = one.status == "measured", one.value
        found = {
            "a bare number: say where it is from (value, status, source)": one.source == UNSOURCED,
            "measured, but not by whom (by)": is_measured and one.by is None,
            f"{one.by} measured it, but its status is {one.status}": not is_measured and one.by is not None,
            "a price without the day it holds for (as_of)": field.startswith("price_usd") and one.as_of is None,
            f"outside {low:g}..{high:g}, where every known one is: {suggestion}": not low <= value <= high,
        }
        yield from (Suspicion((field,), what, value) for what, is_so in found.items() if is_so)
        if field == "memory_bytes" and value % 2**30 == 0:
            yield Suspicion((field,), f"exactly {value / 2**30:g} x 2^30: {next(iter(BINARY))}", value, is_binary=True)


def _beyond(
    field: str, found: Quantity | None, known: Quantity | None, *, twice: str | None = None, total: float | None = None
) -> Iterator[Suspicion]:
    """Yield a suspicion if a value is above the published one.

    `twice`: what a factor of two suggests; `total`: the sum of all engines of the chip.
    """
    if found is None or known is None or found.value <= known.highest * (1 + TOLERANCE):
        return
    ratio = found.value / known.highest
    binary = [name for name, factor in BINARY.items() if _same(ratio, factor, 0.005)]
    if twice is not None and _same(ratio, 2, 2 * TOLERANCE):
        what = f"twice the published {known.highest:g}: {twice}"
    elif _same(ratio, 8):
        what = f"eight times the published {known.highest:g}: bits taken for bytes?"
    elif binary:
        what = f"a little above the published {known.highest:g}: {binary[0]}"
    elif total is not None and _same(found.value, total, CHIP_TOLERANCE):
        what = f"above the published {known.highest:g}: operations of the whole platform counted for one engine?"
    else:
        what = f"above the published {known.highest:g}"
    yield Suspicion((field,), what, found.value, is_binary=bool(binary))


def _of_memories(platform: Platform) -> Iterator[Suspicion]:
    for name, pool in platform.memory_pools.items():
        place: Place = ("memory_pools", name)
        rate, peak = pool.bytes_per_s.value, pool.peak_bytes_per_s
        yield from _below(place, _of_quantities(pool.quantities))
        if peak is not None and rate > peak * (1 + TOLERANCE):
            yield Suspicion((*place, "bytes_per_s"), f"above memory speed times bus width, which is {peak:g}", rate)
        chip = [device_sheet(known) for device in pool.devices if (known := platform.devices[device].sheet) is not None]
        published = [one.memory_bytes_per_s for one in chip if one.memory_bytes_per_s is not None]
        fastest = max(published, key=lambda one: one.highest, default=None)
        yield from _below(place, _beyond("bytes_per_s", pool.bytes_per_s, fastest))
        for device in pool.devices:
            for field in ("memory_cap_bytes_per_s", "memory_bytes_per_s"):
                own: Quantity | None = getattr(platform.devices[device], field)
                if own is not None and own.value > rate * (1 + TOLERANCE):
                    yield Suspicion(("devices", device, field), f"above the {rate:g} of its pool {name!r}", own.value)
        chips = sorted({platform.devices[device].memory_pool or "none" for device in pool.devices})
        if len(chips) > 1:
            yield Suspicion(place, f"devices of different memories share it: {', '.join(chips)}")
    pooled = {device for pool in platform.memory_pools.values() for device in pool.devices}
    for name, sheet in platform.devices.items():
        if sheet.memory_pool is not None and name not in pooled:
            what = f"its sheet shares the memory {sheet.memory_pool!r}, but it is in no memory pool"
            yield Suspicion(("devices", name), what)


def _of_ways(platform: Platform) -> Iterator[Suspicion]:
    pool_of = {device: name for name, pool in platform.memory_pools.items() for device in pool.devices}
    for index, link in enumerate(platform.links):
        one, other = link.between
        if link.bytes_per_s is None and pool_of.get(one, one) != pool_of.get(other, other):
            what = f"nothing is copied between {one} and {other}, but they share no memory: give bytes_per_s"
            yield Suspicion(("links", index), what)
    first = next(iter(platform.devices))
    for name in platform.devices:
        if not (nx.has_path(platform.graph, first, name) and nx.has_path(platform.graph, name, first)):
            yield Suspicion(("devices", name), f"no link leads to {first} and back")


def _below(place: Place, suspicions: Iterator[Suspicion]) -> Iterator[Suspicion]:
    for one in suspicions:
        yield one._replace(place=(*place, *one.place))


def _same(one: float, other: float, tolerance: float = TOLERANCE) -> bool:
    return abs(one - other) <= tolerance * other
