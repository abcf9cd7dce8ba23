"""What-if changes of a platform (`--set`, `--add`): `{"npu.memory_bytes_per_s": "+10%"}`; changed sources say so.

A key is PART.FIELD. PART is a device, a memory pool or a link (`gpu-npu`). A pattern (`memory*`) selects several
devices or pools; `devices:` or `links:` before the beginning of a sheet's id (`links:thunderbolt`) selects all that
have it. A value is a number with or without a unit (`80 GB/s`), a change (`+10%`, `2x`), or `none`, which removes the
number; for fields that are not quantities it is YAML.
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
"""A lower bandwidth is taken for a number whose unit was forgotten, and refused."""
_FIXED: Final = (
    *("name", "sheet", "between", "one_way", "devices", "memory_pool", "facts_source"),
    *("aliases", "maker", "chip", "before_volta", "host_link", "peer_link"),
)
"""Fields that cannot be set."""


def with_overrides(platform: Platform, overrides: Mapping[str, str | float]) -> Platform:
    """Return the platform with some numbers changed; changed numbers have the status `guessed`.

    Setting `memory_bytes_per_s` of a device in a memory pool changes this device only: its efficiency refers to the new
    value, and the pool's bandwidth still limits it. Set `bytes_per_s` of the pool to change all its devices.

    Raises:
        ConfigError: unknown part or field (lists the valid ones), or a wrong value.
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
    """Drop the bandwidth of a pool's devices where it merely repeats the pool's, so that the pool's new one applies."""
    for name in pool["devices"]:
        own = None if platform.devices[name].sheet is not None else platform.devices[name].memory_bytes_per_s
        if own is None or own.value != pool["bytes_per_s"]["value"]:
            continue
        if devices[name]["memory_bytes_per_s"] == own.model_dump():  # else an earlier override has set it
            devices[name]["memory_bytes_per_s"] = None


def _find(platform: Platform, data: dict[str, Any], part: str, key: str) -> tuple[type[StrictModel], list[Any]]:
    """Return the class of a key's PART, and the entries of `data` that it selects."""
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
    """Return the names of the devices that the PART of a key selects."""
    of_class, _, sheet = part.partition(":")
    return [
        name
        for name, device in platform.devices.items()
        if _is_called(name, part) or (of_class == "devices" and _is_of(sheet, device.sheet))
    ]


def _is_called(name: str, part: str) -> bool:
    return name == part or ("*" in part and fnmatchcase(name, part))


def _is_of(name: str, sheet: str | None) -> bool:
    """Return whether a sheet's id is `name` or begins with `name-`."""
    return bool(name) and sheet is not None and f"{sheet}-".startswith(f"{name}-")


def _number(key: str, old: Mapping[str, Any] | None, value: str | float) -> dict[str, Any] | None:
    """Return the data of the quantity that `value` makes of the `old` one; None for `none`."""
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
    """Return the platform with added devices, each `DEVICE` or `DEVICE@LINK`; a device is a name or a sheet's path.

    The link joins the device to those that have such a link already, else to the host (to all lanes of a CPU). The
    default link is that of the sheet, `unified-memory` if the device shares its chip's memory, else PCI Express 4.0.
    `unified-memory` puts the device into the host's memory. Equal cards with equal links form a group, as in a machine
    named `2xrtx3090`. A CPU without a link replaces the platform's assumed CPU.

    Raises:
        ProfileError: unknown device or link (lists the valid ones), or several CPUs are to replace one.
        ConfigError: a file is wrong, or the machine has a CPU that is not assumed.
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
    """Return (sheet, name, count) of a DEVICE: a device's name or the path of a sheet."""
    if device.endswith((".yaml", ".yml")):
        return load_yaml(device, DeviceSheet), Path(device).stem, 1
    named = device_named(device)
    return PlacedDevice.model_validate({"sheet": named.sheet, **named.own_fields}), named.sheet, named.num_devices


def usual_link(device: str) -> str | None:
    """Return the default link of an added device; None for a CPU, which replaces the assumed one.

    Raises as `with_devices`.
    """
    sheet = _added(device)[0]
    return None if sheet.kind == "cpu" else _usual_link(sheet)


def _usual_link(sheet: DeviceSheet) -> str:
    return "unified-memory" if sheet.memory_pool else sheet.host_link or DEFAULT_HOST_LINK


def _grouped(platform: Platform) -> Platform:
    """Return the platform with a further group: all cards that equal its last device and are linked alike."""
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
    """Return `name`, or `name-2`, `name-3` ... if it is taken."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(one for one in names if one not in taken)


def _with_cpu(platform: Platform, sheet: DeviceSheet) -> Platform:
    """Return the platform with its assumed CPU replaced by `sheet`; raises `ConfigError` if its CPU is not assumed."""
    require_memory(sheet)
    if (host := assumed_cpu(platform)) is not None:
        devices = dict(platform.devices) | {host: sheet.model_dump(exclude_none=True)}
        return validated(Platform, platform.model_dump() | {"devices": devices}, ConfigError)
    own = next((one.name for one in platform.devices.values() if one.kind == "cpu"), platform.name)
    raise ConfigError(
        f"{sheet.name} cannot be added: this machine has its CPU ({own}). Add cards to the CPU's own machine "
        "(--platform ryzen-5800x --add rtx4070), or say which link joins both (DEVICE@LINK)"
    )


def _ends_for(platform: Platform, link: str) -> list[str]:
    """Return the devices that a new device is linked to, see `with_devices`."""
    if platform.host is None:
        hosts = list(platform.devices)
    else:
        cpu_lanes = [name for name, device in platform.devices.items() if device.cores]
        hosts = cpu_lanes if platform.host in cpu_lanes else [platform.host]
    linked = list(dict.fromkeys(end for one in platform.links if one.sheet == link for end in one.between))
    return linked if linked and not set(linked) & set(hosts) else hosts


def _with_device(platform: Platform, sheet: DeviceSheet, name: str, link: str) -> Platform:
    own = _free(name, (*platform.devices, *platform.groups, *platform.memory_pools))
    link = link or _usual_link(sheet)
    link_sheet(link)  # raises if there is no such link
    data = platform.model_dump(exclude_none=True)
    data["devices"][own] = sheet.model_dump(exclude_none=True)
    ends = _ends_for(platform, link)
    if link == "unified-memory":
        pool, memory = platform.pool_of(ends[0])
        rates = [memory.bytes_per_s, *([sheet.memory_bytes_per_s] if memory.bytes_per_s.by == CALIBRATION else [])]
        fastest = max(filter(None, rates), key=lambda rate: rate.value)
        for field in ("memory_bytes_per_s", "memory_bytes"):  # these describe the memory of the sheet's own chip
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
