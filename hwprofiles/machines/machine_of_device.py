"""A machine made of a device that ships: a PC or a server with so many of a card, or the chip that a device is part of.

Only its device is known: the CPU beside it, and how they are linked, are the usual ones for it.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Final

from decoding.errors import ProfileError
from hwprofiles.machines.device_names import NamedDevice
from hwprofiles.sheets import DeviceSheet, device_sheet, shipped_names

_DEFAULT_HOST_LINK: Final = "pcie-4-x16"


def machine_of(device: NamedDevice) -> dict[str, Any]:
    """Return the data of a platform, as its file would hold them.

    Raises:
        ProfileError: several chips that share memories with CPUs of their own are no machine.
    """
    sheet = device_sheet(device.sheet)
    own: dict[str, Any] = {"sheet": device.sheet}
    if device.memory_bytes is not None and sheet.memory_pool is None:
        own |= {"memory_bytes": _capacity(device.memory_bytes)}
    if sheet.kind == "cpu" and sheet.memory_pool is None:
        return _of_sockets(device, sheet, own)
    if sheet.memory_pool is not None:
        return _of_chip(device, sheet)
    return _with_cards(device, sheet, own)


def _with_cards(device: NamedDevice, sheet: DeviceSheet, own: dict[str, Any]) -> dict[str, Any]:
    """A PC with cards, or a server where these have links among themselves."""
    cards = ["gpu"] if device.num_devices == 1 else [f"gpu{index}" for index in range(device.num_devices)]
    host_link, peer_link = sheet.host_link or _DEFAULT_HOST_LINK, sheet.peer_link
    between = combinations(cards, 2) if peer_link is not None else ()
    kind = "PC" if peer_link is None else "server"
    return {
        "name": f"A {kind} with {_several(device.num_devices, sheet.name)}",
        "host": "cpu",
        "devices": dict.fromkeys(cards, own)
        | {"cpu": {"sheet": "desktop-cpu" if peer_link is None else "generic-cpu"}},
        "links": [
            *({"between": ["cpu", card], "sheet": host_link} for card in cards),
            *({"between": list(pair), "sheet": peer_link} for pair in between),
        ],
        "groups": {"gpus": cards} if device.num_devices > 1 else {},
    }


def _of_chip(device: NamedDevice, sheet: DeviceSheet) -> dict[str, Any]:
    """The machine of a chip: all devices that have sheets and share its memory, and its CPU."""
    if device.num_devices > 1:
        msg = f"{device.num_devices} of {sheet.name} are as many machines: describe their links in a platform's YAML"
        raise ProfileError(msg)
    _require_memory(sheet)
    names = [one for one in shipped_names("device") if device_sheet(one).memory_pool == sheet.memory_pool]
    devices: dict[str, dict[str, Any]] = {device_sheet(one).kind: {"sheet": one} for one in names}
    devices |= {sheet.kind: {"sheet": device.sheet}}
    devices.setdefault("cpu", {"name": "The CPU of the chip", "kind": "cpu", "memory_pool": sheet.memory_pool})
    shared = sheet.quantities
    memory = shared.get("memory_bytes") if device.memory_bytes is None else _capacity(device.memory_bytes)
    pool = {"devices": [*devices], "bytes_per_s": shared["memory_bytes_per_s"], "memory_bytes": memory}
    return {
        "name": f"A machine with {_several(1, sheet.name)}",
        "host": "cpu",
        "devices": devices,
        "memory_pools": {"memory": {field: value for field, value in pool.items() if value is not None}},
        "links": [{"between": list(pair), "sheet": "unified-memory"} for pair in combinations(devices, 2)],
    }


def _require_memory(sheet: DeviceSheet) -> None:
    if sheet.memory_bytes_per_s is None:
        raise ProfileError(
            f"the sheet of {sheet.name} gives no memory_bytes_per_s: give a platform's YAML, or calibrate"
        )


def _of_sockets(device: NamedDevice, sheet: DeviceSheet, own: dict[str, Any]) -> dict[str, Any]:
    _require_memory(sheet)
    if device.num_devices > 1:
        raise ProfileError(f"several of {sheet.name}: describe the links of their sockets in a platform's YAML")
    return {"name": f"A machine with {_several(1, sheet.name)}", "host": "cpu", "devices": {"cpu": own}}


def _capacity(num_bytes: float) -> dict[str, Any]:
    return {"value": num_bytes, "status": "guessed", "source": "as the machine was called"}


def _several(count: int, name: str) -> str:
    return f"one {name}" if count == 1 else f"{count} of {name}"
