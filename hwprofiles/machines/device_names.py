"""Finds the device that a label means (`RTX 4090`, `2x NVIDIA GeForce RTX 3090`, `Apple M3 Ultra 512 GB`, `h100x2`).

Text in brackets or behind a comma (`, Windows`) says how a device was used, not which one it is; it may tell the number
of devices (`(TP4)`). `machine_of` makes a platform of a device: a PC or server with its cards, or the device's whole
chip, with the usual CPU and links.
"""

import re
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from typing import Any, Final, NamedTuple

from decoding.errors import ProfileError, unknown
from hwprofiles.quantity import Quantity, quantity_fields
from hwprofiles.sheets import DeviceSheet, Priced, device_sheet, link_sheet, shipped_names

MOST_DEVICES: Final = 16
"""Most devices of one kind in a machine."""
_MAKERS: Final = re.compile(
    r"\b(nvidia|amd|intel|apple|qualcomm|geforce|radeon|tesla|quadro|instinct|gpus?|igpu|graphics|imac|"
    r"mac ?book( air| pro)?|mac (mini|studio|pro))\b"
)
_LINE: Final = re.compile(r"^(rtx|gtx|rx|arc)(?=[ab]?\d)")
"""Product lines that people omit, as in `2x3090`."""
_NOTES: Final = re.compile(r"\(.*?\)|,.*$|\btp[ =]?\d+$| (?:with |over )?nvlink$")
_SERVER: Final = re.compile(r"\b(?:nvidia )?dgx (?=[abh]\d{3})")
"""DGX servers with eight cards, followed by the card's name; a DGX Spark or Station has one."""
_NODES: Final = re.compile(r"^(\d{1,2}) ?(?:[x×*]|nodes?(?: of| with)?(?: ?[x×*])?) ?(?=\d{1,2}(?: ?[x×*] ?| )[a-z])")
_IN_NODES: Final = re.compile(r"\b(\d{1,2}) ?(?:nodes|servers)\b")
_BEFORE: Final = re.compile(r"^(?:(\d{1,3}) ?[x*×] ?(?=[a-z0-9])|(\d{1,2}) (?!gi?b|cores?|w\b)(?=[a-z]))")
_CORES: Final = re.compile(r"(?<=7x)-(\d{1,5})\b")
"""Google Cloud's names of TPU7x count cores, of which a chip has two."""
_BEHIND: Final = re.compile(r"(?:(?<=[a-z0-9]) ?[x×] ?(?=\d{1,2}$)|(?<=v[56]e)-|(?<=7x)-)(\d{1,5})$")
_BESIDE: Final = re.compile(r"[(,] ?(?:[x×] ?(\d{1,2})|(\d{1,2}) ?(?:[x×]|gpus?|cards?)) ?(?=[),;]|$)")
TOGETHER: Final = re.compile(
    r"(?:(\d{1,3})[ -]way )?(?:tensor|\btp(?![a-z]))(?:parallel(?:ism)?|size|of|[ _=:-])*(\d{1,3}\b)?|row split",
    re.IGNORECASE,
)
"""Tensor parallelism, with the number of devices before or behind it."""
_CAPACITY: Final = re.compile(r"[ -]?(\d{1,4}) ?g(?:i?b)?(?=$|[ -])")
_FEWER_CORES: Final = {
    "m3-max-gpu": (30, (36, 96), 3.0e11), "m4-max-gpu": (32, (36,), 4.1e11), "m5-max-gpu": (32, (36,), 4.6e11),
}  # fmt: skip
"""Apple chips that are also sold with fewer GPU cores and memory channels: these cores, their sizes in GB, bytes/s."""
_ALL_CORES: Final = 40
"""GPU cores in the data sheets of these chips."""


class NamedDevice(NamedTuple):
    """What a label means.

    Attributes:
        sheet: id of the shipped data sheet.
        num_devices: number of such devices.
        memory_bytes: memory of each device as the label tells it; None: that of the sheet.
    """

    sheet: str
    num_devices: int = 1
    memory_bytes: float | None = None

    @property
    def own_sheet(self) -> DeviceSheet:
        """The data sheet with the memory that the label tells."""
        own = self.own_fields
        quantities = {field: Quantity.model_validate(value) for field, value in own.items() if field != "name"}
        return device_sheet(self.sheet).model_copy(update=own | quantities)

    @property
    def own_fields(self) -> dict[str, Any]:
        """Fields that replace those of the data sheet: the memory that the label tells, and what comes with it."""
        if self.memory_bytes is None:
            return {}
        sheet = device_sheet(self.sheet)
        if sheet.memory_bytes is not None and sheet.memory_bytes.value == self.memory_bytes:
            return {}
        told: dict[str, Any] = {"memory_bytes": {"value": self.memory_bytes, "status": "guessed", "source": AS_CALLED}}
        cores, sizes, bytes_per_s = _FEWER_CORES.get(self.sheet, (0, (), 0.0))
        if self.memory_bytes / 1e9 in sizes:
            source = f"Apple, technical specifications: with {cores} cores of the GPU, as those of this memory have"
            told["memory_bytes_per_s"] = {"value": bytes_per_s, "status": "datasheet", "source": source}
            told["bf16_flops"] = _of_cores(sheet.bf16_flops, cores)
            told["name"] = sheet.name.replace(f"({_ALL_CORES} cores)", f"({cores} cores)")
        return told


def _of_cores(flops: Quantity | None, cores: int) -> dict[str, Any]:
    """Return what `cores` of all cores compute."""
    assert flops is not None, "sheets of such chips have it"
    share = cores / _ALL_CORES
    span = flops.span and tuple(share * one for one in flops.span)
    source = f"{flops.source}; of {cores} of the {_ALL_CORES} cores"
    of_all: dict[str, Any] = {"status": "derived", "by": None} if flops.status == "measured" else {}
    found = flops.model_copy(update={"value": share * flops.value, "span": span, "source": source, **of_all})
    return found.model_dump(exclude_none=True)


def device_named(label: str) -> NamedDevice:
    """Return the device that a label means.

    Raises:
        ProfileError: unknown device (lists close names), too many devices, 0 GB of memory, or a second device behind
            a comma.
    """
    found = find_device(label)
    if others := [one for one in label.split(",")[1:] if find_device(one) is not None]:
        raise ProfileError(f"{label!r}: names {1 + len(others)} devices, where one is meant")
    if found is None:
        raise ProfileError(unknown("device", label, shipped_names("device")))
    if not 1 <= found.num_devices <= MOST_DEVICES:
        raise ProfileError(f"{label!r}: a machine has 1 to {MOST_DEVICES} devices of a kind")
    if found.memory_bytes == 0:
        raise ProfileError(f"{label!r}: a device has more than 0 GB; leave them out for those of its data sheet")
    return found


def find_device(label: str) -> NamedDevice | None:
    """Return the device that a label means; None if there is no shipped sheet for it."""
    count, name, _ = counted(label)
    if label.lower() in (name, f"{count}x{name}") and name in shipped_names("device"):
        return NamedDevice(name, count)  # an id needs none of the hundreds of sheets, which are slow to read
    if (sheet := _sheet(label.lower())) is not None:
        return _with_cores(NamedDevice(sheet), label)
    for one in (_plain(label), name, name.removesuffix("s")):
        own_count = count if name.startswith(one) else 1
        if (sheet := _sheet(one)) is not None:
            return _with_cores(NamedDevice(sheet, own_count), label)
        capacity = _CAPACITY.search(one)
        if capacity is not None and (sheet := _sheet(_CAPACITY.sub("", one, count=1))) is not None:
            return NamedDevice(sheet, own_count, float(capacity[1]) * 1e9)
    return None


def _with_cores(named: NamedDevice, label: str) -> NamedDevice:
    """Return the device with the memory of the variant with fewer cores, if the label tells that number of cores."""
    cores, sizes, _ = _FEWER_CORES.get(named.sheet, (0, (0,), 0.0))
    is_fewer = cores and re.search(rf"\b{cores}[ -]?core", label.lower())
    return named._replace(memory_bytes=sizes[-1] * 1e9) if is_fewer else named


class Counted(NamedTuple):
    """Total number of devices that a label tells, the name of each, and the number of nodes that they are in."""

    num_devices: int
    name: str
    num_nodes: int = 1


def counted(label: str) -> Counted:
    """Split a label into the number of devices and their name: `2 nodes of 8x H800`, `DGX H100`, `H100 TP8`."""
    text = _CORES.sub(lambda found: f"-{max(1, int(found[1]) // 2)}", _SERVER.sub("8x ", label.lower().strip()))
    found = _NODES.match(text) or _IN_NODES.search(text)
    nodes, text = int(found[1]) if found else 1, _NODES.sub("", text)
    each, name = 1, _plain(text)
    for pattern, where in ((_BEFORE, name), (_BEHIND, name), (_BESIDE, text)):
        if (count := pattern.search(where)) is not None:
            each, name = int(next(filter(None, count.groups()))), pattern.sub("", name).strip()
            break
    else:
        told = TOGETHER.search(label)
        each = max(1, int((told and (told[1] or told[2])) or 0))
    return Counted(each if found and found.re is _IN_NODES else nodes * each, name, nodes)


def _sheet(text: str) -> str | None:
    return _by_key().get(_key(text))


@cache
def _by_key() -> Mapping[str, str]:
    """Return ids of sheets by `_key` of each of their names.

    Where two sheets have one key, a whole name wins over one without notes, an id over an alias, an alias over a name.
    """
    sheets = {name: device_sheet(name) for name in shipped_names("device")}
    labels = [
        *((name, name) for name in sheets),
        *((alias, name) for name, sheet in sheets.items() for alias in sheet.aliases),
        *((sheet.name, name) for name, sheet in sheets.items()),
        *((name.removesuffix("-gpu"), name) for name in sheets),
    ]
    # later entries of the dictionary win
    return {_key(form(label)): name for form in (_plain, str.lower) for label, name in reversed(labels)}


def _plain(label: str) -> str:
    return _NOTES.sub("", label.lower()).strip()


def _key(text: str) -> str:
    return _LINE.sub("", re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", text.replace("-", " ").replace("_", " "))))


DEFAULT_HOST_LINK: Final = "pcie-4-x16"
_OF_A_PC, _OF_A_SERVER = ASSUMED_CPUS = ("desktop-cpu", "generic-cpu")
"""Data sheets of the assumed CPUs of machines that are named by their cards only."""
AS_CALLED: Final = "as the machine was called"
"""`Quantity.source` of a memory size that a label tells."""


def other_memory(device: DeviceSheet, sheet: str | None) -> str | None:
    """Say that a device is assumed to keep its sheet's bandwidth although its label tells another memory; else None."""
    shipped = None if sheet is None else device_sheet(sheet)
    own, usual = device.memory_bytes, None if shipped is None else shipped.memory_bytes
    if own is None or own.source != AS_CALLED or usual is None or own.value == usual.value:
        return None
    if shipped is not None and device.memory_bytes_per_s != shipped.memory_bytes_per_s:
        return None  # its own is known
    told, known = (f"{one.value / 1e9:g} GB" for one in (own, usual))
    return f"{device.name} with {told} is taken to read as fast as the one with {known}: makers often cut both."


def machine_of(device: NamedDevice, sheet: DeviceSheet | None = None) -> dict[str, Any]:
    """Return the data of a platform with a device, as in a platform's file; `sheet` describes an unshipped device.

    Raises:
        ProfileError: several chips (with CPU and memory) or CPUs, whose links are not known; or no memory bandwidth.
    """
    own: dict[str, Any] = {"sheet": device.sheet} if sheet is None else sheet.model_dump(exclude_none=True)
    sheet = sheet or device_sheet(device.sheet)
    if sheet.memory_pool is not None:
        return _of_chip(device, sheet, own)
    own |= device.own_fields
    return _of_sockets(device, sheet, own) if sheet.kind == "cpu" else _with_cards(device, sheet, own)


def _with_cards(device: NamedDevice, sheet: DeviceSheet, own: dict[str, Any]) -> dict[str, Any]:
    """Return a PC with cards, or a server if the cards have peer links; a bridge joins neighbouring cards."""
    lane: str = sheet.kind
    cards = [lane] if device.num_devices == 1 else [f"{lane}{index}" for index in range(device.num_devices)]
    host_link, peer_link = sheet.host_link or DEFAULT_HOST_LINK, sheet.peer_link
    joined = 1 if peer_link is None else link_sheet(peer_link).most_joined or len(cards)
    bridged = [cards[first : first + joined] for first in range(0, len(cards), joined)]
    kind = "PC" if peer_link is None else "server"
    return {
        "name": f"A {kind} with {_several(device.num_devices, sheet.name)}",
        "host": "cpu",
        "devices": dict.fromkeys(cards, own) | {"cpu": {"sheet": _OF_A_PC if peer_link is None else _OF_A_SERVER}},
        "links": [
            *({"between": ["cpu", card], "sheet": host_link} for card in cards),
            *({"between": list(pair), "sheet": peer_link} for own in bridged for pair in combinations(own, 2)),
        ],
        "groups": {f"{lane}s": cards} if device.num_devices > 1 else {},
    }


def devices_of_chip(sheet: DeviceSheet) -> list[str]:
    """Return the ids of all shipped devices that share a device's memory, itself included; empty for a card."""
    pool = sheet.memory_pool
    return [one for one in shipped_names("device") if pool is not None and device_sheet(one).memory_pool == pool]


def _of_chip(device: NamedDevice, sheet: DeviceSheet, own: dict[str, Any]) -> dict[str, Any]:
    """Return the machine of a chip: its CPU, and all shipped devices that share its memory."""
    if device.num_devices > 1:
        msg = f"{device.num_devices} of {sheet.name} are as many machines: describe their links in a platform's YAML"
        raise ProfileError(msg)
    require_memory(sheet)
    names = devices_of_chip(sheet)
    devices: dict[str, dict[str, Any]] = {device_sheet(one).kind: {"sheet": one} for one in names}
    computing = {field: value for field, value in device.own_fields.items() if not field.startswith("memory")}
    devices |= {sheet.kind: own | computing}
    devices.setdefault("cpu", {"name": "The CPU of the chip", "kind": "cpu", "memory_pool": sheet.memory_pool})
    shared = sheet.quantities
    of_machine = {field: value for field, value in shared.items() if field in quantity_fields(Priced)}
    shared = {**shared, **device.own_fields}
    memory, bytes_per_s = shared.get("memory_bytes"), shared["memory_bytes_per_s"]
    pool = {"devices": [*devices], "bytes_per_s": bytes_per_s, "memory_bytes": memory}
    return {
        "name": f"A machine with {_several(1, computing.get('name', sheet.name))}",
        "host": "cpu",
        "devices": devices,
        "memory_pools": {"memory": {field: value for field, value in pool.items() if value is not None}},
        "links": [{"between": list(pair), "sheet": "unified-memory"} for pair in combinations(devices, 2)],
        **of_machine,
    }


def require_memory(sheet: DeviceSheet) -> None:
    """Raise `ProfileError` if a sheet gives no memory bandwidth."""
    if sheet.memory_bytes_per_s is None:
        raise ProfileError(
            f"the sheet of {sheet.name} gives no memory_bytes_per_s: give a platform's YAML, or calibrate"
        )


def require_one_socket(sheet: DeviceSheet, count: int) -> None:
    """Raise `ProfileError` for several CPUs: the links between their sockets are not known."""
    if count > 1:
        raise ProfileError(f"several of {sheet.name}: describe the links of their sockets in a platform's YAML")


def _of_sockets(device: NamedDevice, sheet: DeviceSheet, own: dict[str, Any]) -> dict[str, Any]:
    require_memory(sheet)
    require_one_socket(sheet, device.num_devices)
    return {"name": f"A machine with {_several(1, sheet.name)}", "host": "cpu", "devices": {"cpu": own}}


def _several(count: int, name: str) -> str:
    return f"one {name}" if count == 1 else f"{count} of {name}"
