"""The machine of a case: the data sheet that its label means, the number of devices, and how they share a model."""

import csv
import re
from functools import cache
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from decoding.errors import ProfileError, unknown
from hwprofiles.curves.names import device_in, device_key, engine_of, facts_in, family_of
from hwprofiles.engines import LAW_ENGINE, default_engine
from hwprofiles.machines.device_names import DEFAULT_HOST_LINK, TOGETHER, NamedDevice, counted, find_device
from hwprofiles.sheets import DeviceSheet, device_sheet, link_sheet, shipped_names
from sim.derived.assumption import Assumption

_IN_WORDS: Final = {"dual": 2, "two": 2, "triple": 3, "three": 3, "quad": 4, "four": 4, "eight": 8}
_COUNT_IN_WORDS: Final = re.compile(rf"(^|[+,] |\()({'|'.join(_IN_WORDS)})[ -]", re.IGNORECASE)
_APART: Final = re.compile(r"layer[- _]split|pipeline|\bpp(?![a-z])", re.IGNORECASE)
"""Words of machines on which each device has some of the layers."""
_DIFFERENT: Final = re.compile(r"\s\+\s")
"""Separates the different devices of a machine: `RTX 5080 + RTX 3090`."""
_BEHIND: Final = re.compile(r"[,()]")
"""Separates a device's name from what follows it."""
_HOST_CPU: Final = re.compile(r"\b(ryzen (\d|ai)|threadripper|epyc|xeon|core (ultra|i\d)|i[3579]-\d)", re.IGNORECASE)
"""Host CPUs in the labels of machines with GPUs; they have no sheet, or share one with the GPU of their chip."""
_NO_CPU: Final = re.compile(r"cuda|rocm|\bhip\b|vulkan|metal|sycl|xpu|npu|\bi?gpu", re.IGNORECASE)
"""Engines that run on the GPU or NPU of a chip even if the label names only its CPU."""
_KINDS: Final = {
    "npu": re.compile(r"(?i)\bnpu\b|\bane\b|neural engine|hexagon|\bhtp\b"),
    "cpu": re.compile(r"(?i)(?<!core[ -])\bcpu\b(?! cores)"),
    "gpu": re.compile(r"(?i)\bi?gpu|cuda|rocm|\bhip\b|vulkan|metal|mlx|sycl|xpu|opencl|\barc\b|adreno|radeon"),
}
"""Words by which labels and engines name a part of a chip."""
_CPU_KIN: Final = Path(__file__).with_name("cpu-kin.csv")
"""Which CPU's sheet stands in for others, by maker and generation; the first line whose pattern matches counts."""
_SMALLER: Final = re.compile(r"laptop|mobile|max-?q", re.IGNORECASE)
_WATTS: Final = re.compile(r"\b(\d{2,3}) ?w\b", re.IGNORECASE)
_CAPACITY: Final = re.compile(r"\b(\d{1,3}) ?gi?b\b", re.IGNORECASE)
_OF_HOST: Final = re.compile(
    r"\b(?:ram:?|ddr\d) \d+ ?gi?b\b|\b\d+ ?gi?b (?:of )?"
    r"(?:(?:system|host|main|cpu) memory|(?:(?:system|host|main|cpu|ecc) )*(?!v)(?:(?:lp)?ddr|\w*(?:ram|dimm)\b))",
    re.IGNORECASE,
)
"""Memory of the host, not of a card."""
_MOST_OF_SHEET: Final = 2
"""Cards are sold with up to twice their sheet's memory; a larger number is the host's, unless in the card's name."""


class CaseMachine(NamedTuple):
    """What ran a case.

    Attributes:
        sheet: the sheet of each device, with the case's engine and, where it stands in, the case's name.
        num_devices: how many devices there are.
        num_together: how many of them share every layer; 1 if one device has all layers, or each has some.
        step_s: seconds of a step of an all-reduce among them, and their relative error.
        step_bytes_per_s: bandwidth of such a step.
        is_stand_in: whether the sheet is of another device of the same architecture, or of one socket or node of
            several; then only ratios are predicted.
        is_throttled: whether the device is a slower variant of its sheet's, or the machine has faster devices too.
    """

    sheet: DeviceSheet
    num_devices: int
    num_together: int
    step_s: tuple[float, float]
    step_bytes_per_s: float
    is_stand_in: bool
    is_throttled: bool


def case_machine(label: str, engine: str, *, drafts_apart: bool = False) -> CaseMachine:
    """Return the machine that a label means; with `drafts_apart`, one of several devices is the draft's alone.

    Raises:
        ProfileError: no shipped device has that name or is of that architecture.
    """
    whole = label
    label = _COUNT_IN_WORDS.sub(lambda found: f"{found[1]}{_IN_WORDS[found[2].lower()]}x ", label)
    is_on_cpu = "cpu" in engine.lower()
    label = _running(label, is_on_cpu=is_on_cpu)
    mixed = _slowest_of(label)
    kind = _kind_told(f"{label}, {engine}")
    bare = _KINDS[kind].sub("", label) if kind else label
    called = mixed or find_device(label)
    named = called or find_device(device_in(label)) or find_device(bare)
    count = (called or counted(label)).num_devices
    sheet = device_sheet(named.sheet) if named else None if is_on_cpu else _kin_of(device_key(label))
    reason = f"{unknown('shipped device', whole, shipped_names('device'))}; none is known to be of its architecture"
    if sheet is not None and sheet.memory_pool is not None and kind and kind != sheet.kind:
        reason = f"no shipped sheet is of the {kind.upper()} of {sheet.name}"
        sheet = _beside(sheet, kind)
        named = named if sheet else None
    if sheet is None and kind in (None, "cpu"):
        sheet = _cpu_like(label, engine)
    if sheet is None:
        raise ProfileError(reason)
    if count < 1:
        raise ProfileError(f"{whole!r}: a machine has at least one device")
    own_facts = {} if named else {"name": label, **facts_in(label), "maker": sheet.maker}
    sheet = sheet.model_copy(update=own_facts | ({"engine": engine or None} if sheet.kind != "npu" else {}))
    is_card = sheet.kind != "cpu" and sheet.memory_pool is None
    own = label if is_card else whole
    most = sheet.memory_bytes.value * _MOST_OF_SHEET if is_card and named and sheet.memory_bytes else inf
    told = (float(one) * 1e9 for one in _CAPACITY.findall(_OF_HOST.sub("", own) if is_card else own))
    in_name = named.memory_bytes if named else None
    capacity = next((one for one in told if one <= most), None) if in_name is None else in_name
    if capacity is not None and sheet.memory_bytes is not None:
        memory = sheet.memory_bytes.model_copy(update={"value": capacity, "span": None})
        reading = (named._replace(memory_bytes=capacity).own_sheet if named else sheet).memory_bytes_per_s
        sheet = sheet.model_copy(update={"memory_bytes_per_s": reading, "memory_bytes": memory})
    peer_link = sheet.peer_link
    if peer_link is not None and count > (link_sheet(peer_link).most_joined or count):
        peer_link = None
    crossings = 2 if peer_link is None else 1  # without a peer link, data crosses two links through the host
    crossing = link_sheet(peer_link or sheet.host_link or DEFAULT_HOST_LINK)
    assert crossing.step_s is not None, "shipped links between devices have a latency"
    step = Assumption.of_quantity("links.collective_latency_s", crossing.step_s)
    together = _num_together(whole, sheet, engine, 1 if sheet.kind == "cpu" else count, drafts_apart=drafts_apart)
    num_links = min(max(1, together - 1), crossing.mesh_links or 1)
    return CaseMachine(
        sheet=sheet,
        num_devices=count,
        num_together=together,
        step_s=(crossings * step.value, step.relative_error),
        step_bytes_per_s=num_links * crossing.bytes_per_s.value / crossings if crossing.bytes_per_s else inf,
        is_stand_in=named is None or (count > 1 and sheet.kind == "cpu") or counted(label).num_nodes > 1,
        is_throttled=mixed is not None or _is_throttled(own, sheet),
    )


def _num_together(label: str, sheet: DeviceSheet, engine: str, count: int, *, drafts_apart: bool) -> int:
    """Return how many of `count` devices share every layer: as the label states, or else all of a server's."""
    stated = TOGETHER.search(label)
    if stated is None:
        does_share = (engine_of(engine) or default_engine(sheet)) == LAW_ENGINE and not _APART.search(label)
        return max(1, count - drafts_apart) if does_share else 1
    num_stated = int(stated[1] or stated[2] or 0)
    is_group = num_stated > 0 and count % num_stated == 0  # the other groups hold other layers, or copies
    return num_stated if 0 < num_stated < count and (is_group or drafts_apart) else count


def _running(label: str, *, is_on_cpu: bool) -> str:
    """Return the devices of a label that run the model: its CPUs, or its cards without their host CPUs."""
    parts = _DIFFERENT.split(label)
    found = [part for part in parts if _is_cpu(part)] if is_on_cpu else list(filter(None, map(_cards, parts)))
    return " + ".join(found) if found else label


def _cards(part: str) -> str:
    """Return a part of a label without the CPU that it begins with; an empty text for a CPU alone."""
    if not _is_cpu(part):
        return part
    named = [one.strip() for one in _BEHIND.split(part) if one.strip()]
    cards = (place for place, one in enumerate(named) if not _is_cpu(one) and _is_known(one))
    return ", ".join(named[next(cards, len(named)) :])


def _is_known(part: str) -> bool:
    return find_device(part) is not None or family_of(device_key(part)) is not None


def _is_cpu(label: str) -> bool:
    """Return whether a part of a label names a CPU; the name of a chip may be that of its GPU's sheet too."""
    named = find_device(label)
    if named is None:
        return _HOST_CPU.search(label) is not None
    sheet = device_sheet(named.sheet)
    is_chip = sheet.memory_pool is not None and _HOST_CPU.search(_BEHIND.split(label)[0]) is not None
    return is_chip or sheet.kind == "cpu"


def _slowest_of(label: str) -> NamedDevice | None:
    """Return the slowest device of a machine with several kinds, counting all; None for a machine of one kind."""
    parts = [find_device(part) for part in _DIFFERENT.split(label)]
    known = [(part, device_sheet(part.sheet)) for part in parts if part is not None]
    rates = [sheet.memory_bytes_per_s.value for _, sheet in known if sheet.memory_bytes_per_s is not None]
    if len(parts) == 1 or len(rates) < len(parts):
        return None
    sizes = [part.memory_bytes or (sheet.memory_bytes.value if sheet.memory_bytes else 0.0) for part, sheet in known]
    counts = [part.num_devices for part, _ in known]
    memory = sum(size * count for size, count in zip(sizes, counts, strict=True)) / max(1, sum(counts))
    return NamedDevice(known[rates.index(min(rates))][0].sheet, sum(counts), memory)


def _is_throttled(label: str, sheet: DeviceSheet) -> bool:
    """Return whether a label names a slower variant of a device, or fewer watts than its sheet."""
    if _SMALLER.search(label):
        return not _SMALLER.search(sheet.name)
    watts = _WATTS.search(label)
    return watts is not None and (sheet.power_w is None or float(watts[1]) < 0.95 * sheet.power_w.value)


def _cpu_like(label: str, engine: str) -> DeviceSheet | None:
    """Return the shipped CPU that stands in for a label's; None if there is none, or if a GPU or NPU runs the model."""
    text = label.lower()
    like = (sheet for called, sheet in _cpu_kin() if re.search(called, text))
    found = None if _NO_CPU.search(engine) else next(like, None)
    return None if found is None else device_sheet(found)


@cache
def _cpu_kin() -> tuple[tuple[str, str], ...]:
    with _CPU_KIN.open(encoding="utf-8", newline="") as file:
        return tuple((line["called"], line["sheet"]) for line in csv.DictReader(file))


def _kind_told(text: str) -> str | None:
    """Return the part of a chip that a text names; None if it names none, or several."""
    kinds = [kind for kind, called in _KINDS.items() if called.search(text)]
    return kinds[0] if len(kinds) == 1 else None


def _beside(sheet: DeviceSheet, kind: str) -> DeviceSheet | None:
    """Return the shipped device of a kind on the same chip; None if there is none."""
    sheets = map(device_sheet, shipped_names("device"))
    return next((one for one in sheets if (one.kind, one.memory_pool) == (kind, sheet.memory_pool)), None)


def _kin_of(key: str) -> DeviceSheet | None:
    """Return the first shipped GPU of a device's architecture; None if that is unknown."""
    family, sheets = family_of(key), map(device_sheet, shipped_names("device"))
    gpus = (one for one in sheets if one.kind == "gpu" and family_of(one.chip) == family)
    return next(gpus, None) if family else None
