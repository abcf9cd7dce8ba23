"""What-if changes of a platform, such as `{"npu.memory_bytes_per_s": "+10%"}`; the sources of changed numbers say so.

A key is a device, a memory pool or a link (`gpu-npu`), a dot, and a field; or several parts, by the beginning of their
sheet's name (`links:thunderbolt`) or a pattern (`memory*`). A value is a number, with or without a unit (`80 GB/s`), a
change (`+10%`, `2x`), or `none`, which removes it; of fields that are no quantities it is YAML.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from decoding.errors import ConfigError, shown
from decoding.validation import validated
from decoding.yaml_file import StrictModel, load_yaml, parse_yaml
from hwprofiles.machines.assumed_parts import assumed_cpu
from hwprofiles.machines.device_names import DEFAULT_HOST_LINK, device_named, require_memory, require_one_socket
from hwprofiles.platform import Platform
from hwprofiles.platform_parts import MemoryPool, PlacedDevice, PlacedLink
from hwprofiles.quantity import CALIBRATION, number_in, quantity_fields
from hwprofiles.sheets import STARTED_BY, DeviceSheet, link_sheet

_PER_CENT: Final = re.compile(r"([+-])\s*(\d+(?:\.\d+)?)\s*%")
_TIMES: Final = re.compile(r"(\d+(?:\.\d+)?)\s*[x×]|[x×]\s*(\d+(?:\.\d+)?)")
_SLOWEST_BYTES_PER_S: Final = 1e4
"""Less than that is a number without its unit."""
_FIXED: Final = (
    *("name", "sheet", "between", "one_way", "devices", "memory_pool", "facts_source"),
    *("aliases", "maker", "chip", "before_volta", "host_link", "peer_link"),
)
"""Fields that cannot be set."""


def with_overrides(platform: Platform, overrides: Mapping[str, str | float]) -> Platform:
    """Return the platform with some numbers changed, which count as guessed.

    A changed bandwidth of a device in a memory pool is its own: its efficiency is a share of it, and it still draws at
    most what the pool delivers. Name the pool to change it for all devices.

    Raises:
        ConfigError: no part or field is called so (lists those there are), or the value is wrong.
    """
    data = platform.model_dump()
    for key, value in overrides.items():
        part, _, field = key.rpartition(".")
        model, places = _find(platform, data, part, key)
        fields = [name for name in model.model_fields if name not in _FIXED]
        if field not in fields:
            raise ConfigError(f"{key!r}: {part} has no field {field!r} that can be set; it has {', '.join(fields)}")
        for place in places:
            if model is MemoryPool and field == "bytes_per_s":
                _drop_shared(platform, data["devices"], place)
            if field in quantity_fields(model):
                place[field] = _number(key, place[field], value)
            elif value == "none" and not model.model_fields[field].is_required():
                place[field] = model.model_fields[field].default
            else:
                place[field] = parse_yaml(value, object, source=repr(key)) if isinstance(value, str) else value
            if field == "dispatch_s" and place["dispatch_of"] is None:
                place["dispatch_of"] = STARTED_BY[place["kind"]]
    return validated(Platform, data, ConfigError)


def _drop_shared(platform: Platform, devices: dict[str, Any], pool: Mapping[str, Any]) -> None:
    """Take away what devices without a shipped sheet give as their own bandwidth and is that of their memory."""
    for name in pool["devices"]:
        own = None if platform.devices[name].sheet is not None else platform.devices[name].memory_bytes_per_s
        if own is None or own.value != pool["bytes_per_s"]["value"]:
            continue
        if devices[name]["memory_bytes_per_s"] == own.model_dump():  # not what another key has just set
            devices[name]["memory_bytes_per_s"] = None


def _find(platform: Platform, data: dict[str, Any], part: str, key: str) -> tuple[type[StrictModel], list[Any]]:
    """Return the model of a part of a key, and its places in the platform's data."""
    of_class, _, sheet = part.partition(":")
    links = list(zip(data["links"], platform.links, strict=True))
    found: dict[type[StrictModel], list[Any]] = {
        PlacedDevice: [data["devices"][name] for name in devices_named(platform, part)],
        MemoryPool: [data["memory_pools"][name] for name in platform.memory_pools if _is_called(name, part)],
        PlacedLink: [
            place
            for place, link in links
            if part in ("-".join(way) for way in link.directions) or (of_class == "links" and _is_of(sheet, link.sheet))
        ],
    }
    for model, places in found.items():
        if places:
            return model, places
    names = [*platform.devices, *platform.memory_pools, *("-".join(link.between) for link in platform.links)]
    sheets = dict.fromkeys(f"links:{link.sheet}" for link in platform.links if link.sheet)
    msg = f"{key!r}: set PART.FIELD, where PART of platform {platform.name!r} is {', '.join((*names, *sheets))}"
    raise ConfigError(msg)


def devices_named(platform: Platform, part: str) -> list[str]:
    """Return the devices that the part of a key stands for."""
    of_class, _, sheet = part.partition(":")
    return [
        name
        for name, device in platform.devices.items()
        if _is_called(name, part) or (of_class == "devices" and _is_of(sheet, device.sheet))
    ]


def _is_called(name: str, part: str) -> bool:
    return name == part or ("*" in part and fnmatchcase(name, part))


def _is_of(name: str, sheet: str | None) -> bool:
    """Return whether a sheet has a name, or one that begins so."""
    return bool(name) and sheet is not None and f"{sheet}-".startswith(f"{name}-")


def _number(key: str, old: Mapping[str, Any] | None, value: str | float) -> dict[str, Any] | None:
    text = str(value).strip()
    if text == "none":
        return None
    origin = {"status": "guessed", "as_of": None if old is None else old["as_of"]}
    if change := _PER_CENT.fullmatch(text) or _TIMES.fullmatch(text):
        if old is None:
            raise ConfigError(f"{key!r}: no number is given that {text} could change; set one")
        factor = float(change[change.lastindex or 0]) if text[-1] != "%" else 1 + float(change[1] + change[2]) / 100
        span = None if old["span"] is None else tuple(end * factor for end in old["span"])
        source = f"what if: {text} of {old['value']:g} ({old['source']})"
        return origin | {"value": old["value"] * factor, "span": span, "source": source}
    try:
        number = number_in(text, key.rpartition(".")[2])
    except ValueError as error:
        raise ConfigError(
            f"{key!r}: {error}, found {shown(text)}; a change such as +10% or 2x, or none, will do too"
        ) from error
    if isinstance(value, str) and key.endswith("bytes_per_s") and number < _SLOWEST_BYTES_PER_S:
        raise ConfigError(f"{key!r}: {number:g} bytes a second are no bandwidth; write its unit, such as 80 GB/s")
    was = "nothing is known" if old is None else f"it is {old['value']:g} ({old['source']})"
    return origin | {"value": number, "source": f"what if: {text} where {was}"}


def with_devices(platform: Platform, additions: Iterable[str]) -> Platform:
    """Return the platform with more devices, each `DEVICE` or `DEVICE@LINK`, by name or by the path of a sheet.

    The link joins the device to those that have such a link already, else to the host (to all lanes of a CPU). The
    default link is the sheet's, `unified-memory` where the device shares the memory of its chip, else PCI Express 4.0.
    By unified memory the device is in the host's memory. Cards that are equal to one that is there, memory and links
    too, are a group with it, as in a machine that is called so (`2xrtx3090`). A CPU without a link takes the place of
    one that is assumed.

    Raises:
        ProfileError: no device or link is called so, lists those there are; or several CPUs are to take one's place.
        ConfigError: a file is wrong, or the device cannot stand there.
    """
    for addition in additions:
        device, _, link = map(str.strip, addition.partition("@"))
        sheet, name, count = _added(device)
        if sheet.kind == "cpu" and not link:
            require_one_socket(sheet, count)
            platform = _with_cpu(platform, sheet)
            continue
        for _ in range(count):
            platform = _with_device(platform, sheet, name, link)
        platform = _grouped(platform)
    return platform


def _added(device: str) -> tuple[DeviceSheet, str, int]:
    """Return the sheet of a device that is called so or in a file, its name, and how many of it are meant."""
    if device.endswith((".yaml", ".yml")):
        return load_yaml(device, DeviceSheet), Path(device).stem, 1
    named = device_named(device)
    return PlacedDevice.model_validate({"sheet": named.sheet, **named.own_fields}), named.sheet, named.num_devices


def usual_link(device: str) -> str | None:
    """Return the link that joins an added device where none is named; errors are those of `with_devices`.

    None of a CPU, which takes the assumed one's place.
    """
    sheet = _added(device)[0]
    return None if sheet.kind == "cpu" else _usual_link(sheet)


def _usual_link(sheet: DeviceSheet) -> str:
    return "unified-memory" if sheet.memory_pool else sheet.host_link or DEFAULT_HOST_LINK


def _grouped(platform: Platform) -> Platform:
    """Return the platform with all cards that are equal to its last device, and linked alike, as a group too."""
    last = list(platform.devices)[-1]

    def links_of(name: str) -> set[tuple[str, str | None]]:
        others = ((one, ({*one.between} - {name}).pop()) for one in platform.links if name in one.between)
        return {("" if platform.device(other) == card else other, one.sheet) for one, other in others}

    card = platform.device(last)
    equal = [
        name
        for name, one in platform.devices.items()
        if one == card and platform.has_own_memory(name) and one.kind != "cpu" and links_of(name) == links_of(last)
    ]
    if len(equal) < 2:
        return platform
    taken = (*platform.devices, *platform.groups, *platform.memory_pools)
    name = _free(f"{card.kind}s", taken)
    return validated(Platform, platform.model_dump() | {"groups": dict(platform.groups) | {name: equal}}, ConfigError)


def _free(name: str, taken: Iterable[str]) -> str:
    """Return a name, with a number behind it if it is taken."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(one for one in names if one not in taken)


def _with_cpu(platform: Platform, sheet: DeviceSheet) -> Platform:
    """Return the platform with a CPU in place of the one that is assumed."""
    require_memory(sheet)
    if (host := assumed_cpu(platform)) is not None:
        devices = dict(platform.devices) | {host: sheet.model_dump(exclude_none=True)}
        return validated(Platform, platform.model_dump() | {"devices": devices}, ConfigError)
    own = next((one.name for one in platform.devices.values() if one.kind == "cpu"), platform.name)
    raise ConfigError(
        f"{sheet.name} cannot be added: this machine has its CPU ({own}). Add cards to the CPU's own machine "
        "(--platform ryzen-5800x --add rtx4070), or say which link joins both (DEVICE@LINK)"
    )


def _with_device(platform: Platform, sheet: DeviceSheet, name: str, link: str) -> Platform:
    own = _free(name, (*platform.devices, *platform.groups, *platform.memory_pools))
    link = link or _usual_link(sheet)
    link_sheet(link)
    data = platform.model_dump(exclude_none=True)
    data["devices"][own] = sheet.model_dump(exclude_none=True)
    lanes = [name for name, device in platform.devices.items() if device.cores]
    host = list(platform.devices) if platform.host is None else lanes if platform.host in lanes else [platform.host]
    joined = dict.fromkeys(end for one in platform.links if one.sheet == link for end in one.between)
    ends = host if not joined or set(joined) & set(host) else list(joined)
    if link == "unified-memory":
        pool, memory = platform.pool_of(ends[0])
        rates = [memory.bytes_per_s, *([sheet.memory_bytes_per_s] if memory.bytes_per_s.by == CALIBRATION else [])]
        fastest = max(filter(None, rates), key=lambda rate: rate.value)
        for field in ("memory_bytes_per_s", "memory_bytes"):  # which its sheet gives of the memory that it shares
            data["devices"][own].pop(field, None)
        shared = {"devices": [*memory.devices, own], "bytes_per_s": fastest.model_dump()}
        pools = data.setdefault("memory_pools", {})
        name = pool if pool in pools else f"{pool}-memory"
        pools[name] = memory.model_dump(exclude_none=True) | shared
        ends = list(memory.devices)
    if platform.usd_per_hour is not None:
        both = None if sheet.usd_per_hour is None else platform.usd_per_hour + sheet.usd_per_hour
        source = f"the machine and {own} together, each rented or written off"
        price = None if both is None else {"value": both, "status": "derived", "source": source}
        data |= {"price_usd": None, "write_off_s": None, "price_usd_per_hour": price}
    data["links"] = [*data.get("links", ()), *({"between": [end, own], "sheet": link} for end in ends)]
    return validated(Platform, data, ConfigError)
