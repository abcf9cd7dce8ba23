"""Data sheets of devices and links: published numbers, each with its source and its status.

Peaks are dense, bandwidths single-direction, units SI and base 10. What a machine really does is measured by
calibration and lives in `hwprofiles.profile`; nothing here is a measurement of the user's machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from decoding.errors import ProfileError
from decoding.yaml_file import StrictModel, load_yaml

_FOLDER = Path(__file__).parent
Kind = Literal["device", "link", "platform"]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Quantity(StrictModel):
    """A published number.

    Attributes:
        value: in the SI unit that the field's name ends with.
        span: lowest and highest published value, where sources differ; `value` lies within.
        status: `datasheet` (the maker's word), `measured` (by whom, the source names), or `derived` from others.
        source: where it is from, and how it was derived.
    """

    value: Annotated[Finite, Field(gt=0)]
    span: tuple[Finite, Finite] | None = None
    status: Literal["datasheet", "measured", "derived"]
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _within_span(self) -> Self:
        if self.span is not None and not self.span[0] <= self.value <= self.span[1]:
            msg = f"value {self.value:g} is outside its span {self.span[0]:g}..{self.span[1]:g}"
            raise ValueError(msg)
        return self


class DeviceSheet(StrictModel):
    """One compute device.

    Attributes:
        name: as its maker calls it.
        kind: what it is.
        memory_pool: name of the memory it shares with other devices of its chip; None if it has its own.
        bf16_flops: dense half-precision peak, FLOP/s.
        int8_ops: dense 8-bit peak, operations/s.
        memory_bytes_per_s: bandwidth of its memory, or of the pool it shares.
        memory_bytes: capacity of that memory.
        power_w: board or package power.
        dispatch_s: fixed cost of starting one kernel or one compiled graph.
    """

    name: str
    kind: Literal["cpu", "gpu", "npu"]
    memory_pool: str | None = None
    bf16_flops: Quantity | None = None
    int8_ops: Quantity | None = None
    memory_bytes_per_s: Quantity | None = None
    memory_bytes: Quantity | None = None
    power_w: Quantity | None = None
    dispatch_s: Quantity | None = None

    def bandwidth_floor_s(self, num_bytes: float) -> float:
        """The least time in which the device can read `num_bytes` once: a bound of every decoding step.

        Raises:
            ProfileError: the sheet gives no bandwidth.
        """
        if self.memory_bytes_per_s is None:
            msg = f"the data sheet of {self.name} gives no memory_bytes_per_s; measure it, or give it in your own sheet"
            raise ProfileError(msg)
        return num_bytes / self.memory_bytes_per_s.value


class LinkSheet(StrictModel):
    """One kind of link; `bytes_per_s` is per direction, None where nothing is copied (unified memory)."""

    name: str
    bytes_per_s: Quantity | None = None
    latency_s: Quantity | None = None


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """Ids of all that is shipped of a kind."""
    return tuple(sorted(path.stem for path in (_FOLDER / f"{kind}s").glob("*.yaml")))


def shipped_file(kind: Kind, name: str) -> Path:
    """The file of what is shipped under a name.

    Raises:
        ProfileError: there is none of that name; lists those there are.
    """
    if name not in (names := shipped_names(kind)):
        msg = f"no {kind} is called {name!r}; there are {', '.join(names)}"
        raise ProfileError(msg)
    return _FOLDER / f"{kind}s" / f"{name}.yaml"


def device_sheet(name: str) -> DeviceSheet:
    """A shipped data sheet of a device; errors as in `shipped_file`."""
    return load_yaml(shipped_file("device", name), DeviceSheet)


def link_sheet(name: str) -> LinkSheet:
    """A shipped data sheet of a link; errors as in `shipped_file`."""
    return load_yaml(shipped_file("link", name), LinkSheet)
