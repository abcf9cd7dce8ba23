"""Devices, links and memories of a platform. Each may name a shipped sheet; fields that the platform gives replace it.

A bare number counts as guessed.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from decoding.errors import unknown
from decoding.validation import Many, Pair
from decoding.yaml_file import StrictModel
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
    with_facts_that_are_told,
)

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+:@.-]{1,60}$")]
"""Name of a device, a memory pool or a group."""


class PlacedDevice(DeviceSheet):
    """A device of a platform.

    Attributes:
        sheet: id of the shipped sheet that gives all fields not set here; None: no sheet.
        cores: cores of the host that the device consists of; devices with a common core cannot work at once.
    """

    sheet: str | None = None
    cores: Many[Annotated[int, Field(ge=0, le=100_000)]] = ()

    @model_validator(mode="before")
    @classmethod
    def _over_its_sheet(cls, data: Any) -> Any:
        return _laid_over_sheet(data, "device", device_sheet, cls)


class PlacedLink(LinkSheet):
    """A link of a platform.

    Attributes:
        between: the two devices. Each direction has the full bandwidth and a separate queue.
        one_way: whether the link leads only from the first device to the second.
        sheet: id of the shipped sheet that gives all fields not set here; None: no sheet.
    """

    between: Pair[Name]
    one_way: bool = False
    sheet: str | None = None
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _over_its_sheet(cls, data: Any) -> Any:
        return _laid_over_sheet(data, "link", link_sheet, cls)

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
        """(from, to) of each direction."""
        return (self.between,) if self.one_way else (self.between, self.between[::-1])

    def transfer_s(self, num_bytes: float) -> float:
        """Return seconds of one message: latency, plus bytes over bandwidth unless memory is unified."""
        assert self.latency_s is not None
        return self.latency_s.value + (num_bytes / self.bytes_per_s.value if self.bytes_per_s is not None else 0.0)


class MemoryPool(Sourced):
    """A memory, and the devices that share it.

    Attributes:
        bytes_per_s: total bandwidth of all devices, reads and writes.
        memory_bytes: capacity.
        transfers_per_s: transfers per second and pin (8.533e9 for LPDDR5X-8533).
        bus_bits: bus width.
    """

    devices: Annotated[Many[Name], Field(min_length=1)]
    bytes_per_s: ByteRates
    memory_bytes: Capacities | None = None
    transfers_per_s: Annotated[Quantity, within(1e6, 1e12)] | None = None
    bus_bits: Annotated[Quantity, within(1.0, 1e6)] | None = None

    @property
    def peak_bytes_per_s(self) -> float | None:
        """Transfer rate times bus width; None unless both are known."""
        if self.transfers_per_s is None or self.bus_bits is None:
            return None
        return self.transfers_per_s.value * self.bus_bits.value / 8


def _laid_over_sheet(
    data: Any, kind: Literal["device", "link"], read: Callable[[str], StrictModel], model: type[StrictModel]
) -> Any:
    """Return the data of a part over the fields of the shipped sheet that it names, if any."""
    if not isinstance(data, Mapping):
        return data
    own, name, names = with_quantities(with_facts_that_are_told(data), model), data.get("sheet"), shipped_names(kind)
    if name is None:
        return own
    if not isinstance(name, str) or name not in names:
        raise ValueError(unknown(f"{kind} sheet", name, names))
    return read(name).model_dump(exclude_none=True) | own
