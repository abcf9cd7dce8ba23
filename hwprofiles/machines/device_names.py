"""What a label of a device means: `RTX 4090`, `2x NVIDIA GeForce RTX 3090`, `Apple M3 Ultra 512 GB`, `h100x2`.

A sheet is known by its id, its name and its `aliases`, however they are spelt and with or without its maker's name.
What stands in brackets or behind a comma (`(TP4)`, `, Windows`) says how a device was used, not which one it is. Where
a label says more (`Mac Studio M3 Ultra, 4x 3090 NVLink`), the device is the one that its words name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
_COUNTS: Final = {"dual": 2, "two": 2, "quad": 4, "four": 4, "eight": 8}
_BEFORE: Final = re.compile(rf"^(\d{{1,3}}|{'|'.join(_COUNTS)})(?: ?[x*×] ?|(?<=[a-z]) )(?=[a-z]|\d{{4}})")
_BEHIND: Final = re.compile(r"(?<=[a-z0-9]) ?[x×] ?(\d{1,2})$")
_CAPACITY: Final = re.compile(r"[ -]?(\d{1,4}) ?g(?:i?b)?$")
_USE: Final = re.compile(r"\b\d{2,4} ?(?:w|gi?b)\b")
"""Power and memory."""
_OTHER: Final = re.compile("ti|super|xtx?|gre|laptop|mobile|ada|nvl|nx|nano|pro|max|ultra|class")
"""Words that make another device of one."""
_TELLING: Final = re.compile(r"\d{3}")
"""A word with so many digits names a device."""


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
            count, text = _COUNTS.get(match[1]) or int(match[1]), pattern.sub("", text).strip()
            break
    if (sheet := _sheet(text)) is not None:
        return NamedDevice(sheet, count)
    capacity = _CAPACITY.search(text)
    text = text[: capacity.start()] if capacity else text
    sheet = _sheet(text) or _sheet_within(text) or _sheet_within(re.sub(r"[(),]", " ", label.lower()))
    memory_bytes = float(capacity[1]) * 1e9 if capacity else None
    return None if sheet is None else NamedDevice(sheet, count, memory_bytes)


def _sheet(text: str) -> str | None:
    return _by_key().get(_key(text))


def _sheet_within(text: str) -> str | None:
    """Return the only device that words of a text name; None where others may make another one of it."""
    words = _USE.sub("", text.replace("-", " ")).split()
    found = dict[int, str]()
    for start, end in _runs(words):
        named = words[start:end]
        sheet = None if start in found or not _key(" ".join(named)) else _sheet(" ".join(named))
        if sheet is not None and (end == len(words) or not _OTHER.fullmatch(words[end])):
            found |= dict.fromkeys(range(start, end), sheet)
    left = [word for index, word in enumerate(words) if index not in found and _TELLING.search(word)]
    return found.popitem()[1] if len({*found.values()}) == 1 and not left else None


def _runs(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield first and last word, which is left out, of all that stand together, the longest first."""
    for length in range(len(words), 0, -1):
        yield from ((start, start + length) for start in range(len(words) - length + 1))


@cache
def _by_key() -> Mapping[str, str]:
    """Sheets by all that they are called; an id before an alias, an alias before a name."""
    sheets = {name: device_sheet(name) for name in shipped_names("device")}
    labels = [
        *((name, name) for name in sheets),
        *((alias, name) for name, sheet in sheets.items() for alias in sheet.aliases),
        *((sheet.name, name) for name, sheet in sheets.items()),
        *((name.removesuffix("-gpu"), name) for name in sheets),
        *((re.sub(r"^(rtx|rx|gtx)(?=\d{4})", "", name), name) for name in sheets),
    ]
    return {_key(text): name for label, name in reversed(labels) for text in (_plain(label), label.lower())}


def _plain(label: str) -> str:
    return _NOTES.sub("", label.lower()).strip()


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", text.replace("-", " ").replace("_", " ")))
