"""What a label of a device means: `RTX 4090`, `2x NVIDIA GeForce RTX 3090`, `Apple M3 Ultra 512 GB`, `h100x2`.

A sheet is known by its id, its name and its `aliases`, however they are spelt and with or without its maker's name.
What stands in brackets or behind a comma (`(TP4)`, `, Windows`) says how a device was used, not which one it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from decoding.errors import ProfileError, unknown
from hwprofiles.sheets import device_sheet, shipped_names

MOST_DEVICES: Final = 16
"""Of one machine."""
_MAKERS: Final = re.compile(
    r"\b(nvidia|amd|intel|apple|qualcomm|geforce|radeon|tesla|quadro|instinct|gpu|igpu|graphics)\b"
)
_NOTES: Final = re.compile(r"\(.*?\)|,.*$|\btp ?\d+$")
_BEFORE: Final = re.compile(r"^(\d{1,3}) ?[x*×] ?(?=[a-z])")
_BEHIND: Final = re.compile(r"(?<=[a-z0-9]) ?[x×] ?(\d{1,2})$")
_CAPACITY: Final = re.compile(r"[ -]?(\d{1,4}) ?g(?:i?b)?$")


class NamedDevice(NamedTuple):
    """What a label means.

    Attributes:
        sheet: id of the sheet that ships.
        num_devices: how many of them.
        memory_bytes: of each, where the label says so; None: as the sheet has it.
    """

    sheet: str
    num_devices: int = 1
    memory_bytes: float | None = None


def device_named(label: str) -> NamedDevice:
    """Return the device that a label means.

    Raises:
        ProfileError: no sheet that ships is called so, or there are too many; says what is close.
    """
    found = find_device(label)
    if found is None:
        raise ProfileError(unknown("device", label, shipped_names("device")))
    if not 1 <= found.num_devices <= MOST_DEVICES:
        raise ProfileError(f"{label!r}: a machine has 1 to {MOST_DEVICES} devices of a kind")
    return found


def find_device(label: str) -> NamedDevice | None:
    """Return the device that a label means; None if no sheet that ships is called so."""
    text = _plain(label)
    if (sheet := _sheet(label.lower()) or _sheet(text)) is not None:
        return NamedDevice(sheet)
    count = 1
    for pattern in (_BEFORE, _BEHIND):
        if (match := pattern.search(text)) is not None:
            count, text = int(match[1]), pattern.sub("", text).strip()
            break
    if (sheet := _sheet(text)) is not None:
        return NamedDevice(sheet, count)
    capacity = _CAPACITY.search(text)
    sheet = None if capacity is None else _sheet(text[: capacity.start()])
    return None if sheet is None or capacity is None else NamedDevice(sheet, count, float(capacity[1]) * 1e9)


def _sheet(text: str) -> str | None:
    return _by_key().get(_key(text))


@cache
def _by_key() -> Mapping[str, str]:
    """Sheets by all that they are called; an id before an alias, an alias before a name."""
    sheets = {name: device_sheet(name) for name in shipped_names("device")}
    labels = [
        *((name, name) for name in sheets),
        *((alias, name) for name, sheet in sheets.items() for alias in sheet.aliases),
        *((sheet.name, name) for name, sheet in sheets.items()),
        *((name.removesuffix("-gpu"), name) for name in sheets),
    ]
    return {_key(text): name for label, name in reversed(labels) for text in (_plain(label), label.lower())}


def _plain(label: str) -> str:
    return _NOTES.sub("", label.lower()).strip()


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", text.replace("-", " ").replace("_", " ")))
