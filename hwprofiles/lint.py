"""Finds the mistakes that tables of hardware numbers commonly carry.

Sparse peaks listed as dense ones, both directions of a link added up, 2^40 used as tera, more bandwidth than the
part has, and milliseconds for microseconds. A finding is a suspicion in words; an empty list is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator

from hwprofiles.quantity import Quantity
from hwprofiles.sheets import DeviceSheet, LinkSheet, device_sheet, link_sheet, shipped_names

_TOLERANCE = 0.02
_TEBI = 2.0**40 / 1e12
_INT8_OVER_BF16 = 4.2
"""A dense 8-bit peak is twice the half-precision one, four times where accumulation in fp32 halves the latter."""
_TIMES = (1e-7, 5e-3, " s", "milli- and microseconds mixed?")
"""From a hop between neighbours to the slowest dispatch known."""
_RATES = (1e9, 1.2e13, "", "other units than bytes per second?")
"""From a single memory channel to what the fastest accelerators of 2025 reach."""


def lint_device(sheet: DeviceSheet, reference: DeviceSheet | None = None) -> list[str]:
    """What is probably wrong in a device sheet, a sentence each.

    `reference` is a trusted sheet of the same device; by default the shipped one of the same name, if any.
    """
    shipped = (known for known in map(device_sheet, shipped_names("device")) if known.name == sheet.name)
    known = reference or next(shipped, None)
    findings = list(_inner_contradictions(sheet))
    if known is not None:
        for field in ("bf16_flops", "int8_ops"):
            twice = "a sparse figure listed as dense?"
            findings += _beyond(sheet.name, field, getattr(sheet, field), getattr(known, field), twice)
        findings += _beyond(sheet.name, "memory_bytes_per_s", sheet.memory_bytes_per_s, known.memory_bytes_per_s)
    return findings


def lint_link(sheet: LinkSheet, reference: LinkSheet | None = None) -> list[str]:
    """What is probably wrong in a link sheet, a sentence each; `reference` as in `lint_device`."""
    shipped = (known for known in map(link_sheet, shipped_names("link")) if known.name == sheet.name)
    known = reference or next(shipped, None)
    findings = [
        *_implausible(f"{sheet.name}: latency_s", sheet.latency_s, _TIMES),
        *_implausible(f"{sheet.name}: bytes_per_s", sheet.bytes_per_s, _RATES),
    ]
    if known is not None:
        twice = "both directions added up?"
        findings += _beyond(sheet.name, "bytes_per_s", sheet.bytes_per_s, known.bytes_per_s, twice)
    return findings


def _beyond(
    name: str, field: str, found: Quantity | None, known: Quantity | None, twice: str | None = None
) -> Iterator[str]:
    """A value above the known one; `twice` is what a factor of two suggests."""
    if found is None or known is None:
        return
    ratio = found.value / _highest(known)
    what = f"{name}: {field} {found.value:g}"
    if twice is not None and abs(ratio - 2) <= 2 * _TOLERANCE:
        yield f"{what} is twice the published {_highest(known):g}: {twice}"
    elif abs(ratio - _TEBI) <= 0.005 * _TEBI:
        yield f"{what} is 2^40/10^12 times the published {_highest(known):g}: binary instead of decimal units?"
    elif ratio > 1 + _TOLERANCE:
        yield f"{what} is above the published {_highest(known):g}"


def _inner_contradictions(sheet: DeviceSheet) -> Iterator[str]:
    if sheet.bf16_flops is not None and sheet.int8_ops is not None:
        ratio = _highest(sheet.int8_ops) / _highest(sheet.bf16_flops)
        if not 1 <= ratio <= _INT8_OVER_BF16:
            yield f"{sheet.name}: int8_ops over bf16_flops is {ratio:.2g}, usually 2: is one of them sparse?"
    yield from _implausible(f"{sheet.name}: memory_bytes_per_s", sheet.memory_bytes_per_s, _RATES)
    yield from _implausible(f"{sheet.name}: dispatch_s", sheet.dispatch_s, _TIMES)


def _implausible(what: str, quantity: Quantity | None, plausible: tuple[float, float, str, str]) -> Iterator[str]:
    low, high, unit, suspicion = plausible
    if quantity is not None and not low <= quantity.value <= high:
        yield f"{what} {quantity.value:g}{unit} is outside {low:g}..{high:g}{unit}: {suspicion}"


def _highest(quantity: Quantity) -> float:
    return quantity.span[1] if quantity.span is not None else quantity.value
