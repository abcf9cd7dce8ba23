"""A device or a link in its place on a platform: a shipped sheet, with whatever fields the platform says itself.

Own fields win over the sheet's, field by field; without a sheet the own fields are all there is. A number may stand
there bare, and then counts as guessed: only a quantity can say where it is from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from decoding.errors import unknown
from decoding.validation import Many, Pair
from decoding.yaml_file import StrictModel
from hwprofiles import bounds
from hwprofiles.quantity import Quantity, with_quantities, within
from hwprofiles.sheets import (
    ByteRates,
    Capacities,
    DeviceSheet,
    LinkSheet,
    Sourced,
    device_sheet,
    link_sheet,
    shipped_names,
)

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+:@.-]{1,60}$")]
"""Of a device, a memory pool or a group. Overrides part it from its field at the last dot."""

TransferRates = Annotated[Quantity, within(*bounds.TRANSFER_RATES)]
BusWidths = Annotated[Quantity, within(*bounds.BUS_WIDTHS)]

_READERS: Final[Mapping[Literal["device", "link"], Callable[[str], DeviceSheet | LinkSheet]]] = {
    "device": device_sheet,
    "link": link_sheet,
}


class PlacedDevice(DeviceSheet):
    """A device of a platform: a data sheet, and the name of the shipped one that it was laid over, if any.

    Attributes:
        sheet: of the shipped one.
        cores: those of the host that it is; two devices that have one in common cannot work at once.
    """

    sheet: str | None = None
    cores: Many[Annotated[int, Field(ge=0, le=100_000)]] = ()

    @model_validator(mode="before")
    @classmethod
    def _over_its_sheet(cls, data: Any) -> Any:
        return _laid_over_sheet(data, "device", cls)


class PlacedLink(LinkSheet):
    """A link between two devices: a data sheet, and the name of the shipped one that it was laid over, if any.

    Attributes:
        between: its ends. Each direction has the whole bandwidth and queue to itself.
        one_way: whether it leads only from the first end to the second; two such links may differ.
        sheet: of the shipped one.
    """

    between: Pair[Name]
    one_way: bool = False
    sheet: str | None = None
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _over_its_sheet(cls, data: Any) -> Any:
        return _laid_over_sheet(data, "link", cls)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.between[0] == self.between[1]:
            msg = f"a link joins two different devices, not {self.between[0]} and itself"
            raise ValueError(msg)
        if self.latency_s is None:
            msg = f"the link {' - '.join(self.between)} has no latency: its sheet gives none, so give latency_s here"
            raise ValueError(msg)
        return self

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """(from, to) of each way that it leads."""
        return (self.between,) if self.one_way else (self.between, self.between[::-1])

    def transfer_s(self, num_bytes: float) -> float:
        """Return seconds for one message: latency, and bytes over bandwidth unless nothing is copied."""
        assert self.latency_s is not None
        return self.latency_s.value + (num_bytes / self.bytes_per_s.value if self.bytes_per_s is not None else 0.0)


class MemoryPool(Sourced):
    """A memory, and the devices that share its bandwidth and capacity.

    Attributes:
        devices: who shares it.
        bytes_per_s: what it delivers to all of them together, reads and writes.
        memory_bytes: what it holds.
        transfers_per_s: speed of its memory, transfers per second and pin (8.533e9 of LPDDR5X-8533).
        bus_bits: width of its bus.
    """

    devices: Annotated[Many[Name], Field(min_length=1)]
    bytes_per_s: ByteRates
    memory_bytes: Capacities | None = None
    transfers_per_s: TransferRates | None = None
    bus_bits: BusWidths | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_bare_numbers(cls, data: Any) -> Any:
        return with_quantities(data, cls) if isinstance(data, Mapping) else data

    @property
    def peak_bytes_per_s(self) -> float | None:
        """Memory speed times bus width; None unless both are known."""
        if self.transfers_per_s is None or self.bus_bits is None:
            return None
        return self.transfers_per_s.value * self.bus_bits.value / 8


def _laid_over_sheet(data: Any, kind: Literal["device", "link"], model: type[StrictModel]) -> Any:
    """Return the fields of a shipped sheet, if one is named, under those given."""
    if not isinstance(data, Mapping):
        return data
    own, name, names = with_quantities(data, model), data.get("sheet"), shipped_names(kind)
    if name is None:
        return own
    if not isinstance(name, str) or name not in names:
        raise ValueError(unknown(f"{kind} sheet", name, names))
    return _READERS[kind](name).model_dump(exclude_none=True) | own
