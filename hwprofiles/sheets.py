"""Data sheets of devices and links: published numbers, each with its source and its status.

Peaks are dense, bandwidths single-direction, units SI and base 10. What a machine really does is measured by
calibration and lives in `hwprofiles.profile`; nothing here is a measurement of the user's machine.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from decoding.errors import ProfileError, unknown
from decoding.validation import Many
from decoding.yaml_file import StrictModel, load_yaml
from hwprofiles.bounds import LONGEST_S, MOST_SLOWDOWN
from hwprofiles.curves.names import Maker, device_key, facts_in, family_of
from hwprofiles.quantity import Quantity, quantity_fields, with_quantities, within
from hwprofiles.weights.formats import stored_weights

_FOLDER = Path(__file__).parent
Kind = Literal["device", "link", "platform"]
KINDS: Final[tuple[Kind, ...]] = ("device", "link", "platform")
DeviceKind = Literal["cpu", "gpu", "npu"]

# Least and most of each kind of number, in SI units.
_Times = Annotated[Quantity, within(1e-12, LONGEST_S)]
ByteRates = Annotated[Quantity, within(1.0, 1e18)]
OperationRates = Annotated[Quantity, within(1.0, 1e21)]
Capacities = Annotated[Quantity, within(1.0, 1e15)]
Powers = Annotated[Quantity, within(1e-6, 1e6)]
_Shares = Annotated[Quantity, within(1e-6, 1.0)]
_Prices = Annotated[Quantity, within(1e-6, 1e9)]
GrowthsPerRow = Annotated[Quantity, within(1e-6, 4.0)]  # old kernels read the weights again for each row
WriteOffs = Annotated[Quantity, within(LONGEST_S, 1e10)]

STARTED_BY: Final = {"cpu": "kernel", "gpu": "kernel", "npu": "graph"}
"""Default of `dispatch_of`."""

_TOLD: Final = ("maker", "chip")
_WeightFormat = Literal["fp32", "bf16", "fp16", "fp8", "int8", "fp4", "nf4", "int4"]


class Sourced(StrictModel):
    """A model whose numbers have origins; a bare number counts as guessed."""

    @model_validator(mode="before")
    @classmethod
    def _with_bare_numbers(cls, data: Any) -> Any:
        return with_quantities(data, cls) if isinstance(data, Mapping) else data

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Its own numbers, by field."""
        values = {field: getattr(self, field) for field in quantity_fields(type(self))}
        return {field: value for field, value in values.items() if value is not None}


class Priced(Sourced):
    """A thing with a rent (`price_usd_per_hour`), or a price that is written off over some time of use."""

    price_usd_per_hour: _Prices | None = None
    price_usd: _Prices | None = None
    write_off_s: WriteOffs | None = None

    @model_validator(mode="after")
    def _purchase_is_written_off(self) -> Self:
        if (self.price_usd is None) != (self.write_off_s is None):
            msg = "price_usd and write_off_s belong together: a purchase costs nothing per hour until it is written off"
            raise ValueError(msg)
        return self

    @property
    def usd_per_hour(self) -> float | None:
        """The rent, else the purchase over its write-off (power not included); None where neither is known."""
        if self.price_usd_per_hour is not None:
            return self.price_usd_per_hour.value
        if self.price_usd is None or self.write_off_s is None:
            return None
        return self.price_usd.value / self.write_off_s.value * 3600.0


def with_facts_that_are_told(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a device without a maker or a chip that is left empty, which tells nothing."""
    return {field: value for field, value in data.items() if field not in _TOLD or value not in (None, "")}


class DeviceSheet(Priced):
    """One compute device.

    Attributes:
        name, aliases: its maker's, and other names that people use.
        maker: who makes it, as far as that decides which engines run there.
        chip: what public curves call it (`hwprofiles.curves.names`), which tells its architecture.
        before_volta: whether it is a GPU of NVIDIA older than that, for which servers' engines have no kernels.
        host_link: sheet of the usual link to its CPU; None for devices of one chip.
        peer_link: sheet of the usual link to others of its kind; None where they talk through the CPU.
        memory_pool: name of the memory it shares with other devices of its chip; None if it has its own.
        bf16_flops: dense half-precision peak, FLOP/s; of status `measured`, what was reached instead.
        int8_ops: dense peak of 8-bit integers, operations/s.
        fp8_flops, fp4_flops: dense peaks of floating-point numbers of 8 and 4 bits (summed up in 32), FLOP/s.
        memory_bytes_per_s: bandwidth of its memory, or of the pool it shares.
        memory_cap_bytes_per_s: the most that this device alone can draw from a shared pool; None if not known.
        int8_cap_bytes_per_s, int4_cap_bytes_per_s: the same of weights in these formats, where unpacking them is what
            takes the time.
        memory_bytes: capacity of that memory.
        memory_efficiency: share of `memory_bytes_per_s` that was reached by this device alone.
        flops_efficiency: share of `bf16_flops` that was reached.
        growth_per_row: by what share every further row, up to eight, slows kernels that are bound by memory.
        kernel_start_s: of a measured kernel law: what each kernel takes beside reading and computing, all of which add
            up; kernels of a replayed graph.
        unhidden_share: of such a law: the share of the time at peak that computing adds to reading.
        engine_step_s: what the engine's host takes for each pass, beside what such a law or kernels of a draft take.
        starts_of_mixtures: how many times as many kernels an eager framework starts for a mixture of experts.
        engine: what runs models on it, `llama.cpp` or `llama.cpp vulkan` say; None: what most people run on such a one.
        power_w: board or package power while working.
        idle_power_w: the same while waiting.
        power_of: whether that is the power of this device, or of a package that it shares with others.
        dispatch_s: fixed cost of starting one kernel or one compiled graph.
        dispatch_of: what `dispatch_s` starts: a `kernel` (several a layer) or a `graph` (one a model part).
        two_streams_slowdown: time of work on one of two streams of this device over its time alone.
        static_shapes: whether every shape must be compiled before: rows and contexts are padded to a bucket then.
        row_buckets: numbers of rows it is compiled for, ascending; empty if not known.
        max_prompt_tokens: longest prompt that it is compiled for; None if there is no limit or it is not known.
        weight_formats: types of weights it runs; empty if not known.
        facts_source: where `static_shapes`, `row_buckets`, `max_prompt_tokens` and `weight_formats` are from.
    """

    name: Annotated[str, Field(min_length=1)]
    kind: DeviceKind
    aliases: Many[Annotated[str, Field(min_length=1)]] = ()
    maker: Maker | None = None
    chip: str = ""
    before_volta: bool = False
    host_link: str | None = None
    peer_link: str | None = None
    memory_pool: str | None = None
    bf16_flops: OperationRates | None = None
    int8_ops: OperationRates | None = None
    fp8_flops: OperationRates | None = None
    fp4_flops: OperationRates | None = None
    memory_bytes_per_s: ByteRates | None = None
    memory_cap_bytes_per_s: ByteRates | None = None
    int8_cap_bytes_per_s: ByteRates | None = None
    int4_cap_bytes_per_s: ByteRates | None = None
    memory_bytes: Capacities | None = None
    memory_efficiency: _Shares | None = None
    flops_efficiency: _Shares | None = None
    growth_per_row: GrowthsPerRow | None = None
    kernel_start_s: _Times | None = None
    unhidden_share: _Shares | None = None
    engine_step_s: _Times | None = None
    starts_of_mixtures: Annotated[Quantity, within(1.0, 100.0)] | None = None
    engine: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    power_w: Powers | None = None
    idle_power_w: Powers | None = None
    power_of: Literal["device", "package"] = "device"
    dispatch_s: _Times | None = None
    dispatch_of: Literal["kernel", "graph"] | None = None
    two_streams_slowdown: Annotated[Quantity, within(1.0, MOST_SLOWDOWN)] | None = None
    static_shapes: bool = False
    row_buckets: Many[Annotated[int, Field(ge=1, le=100_000)]] = ()
    max_prompt_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None
    weight_formats: Many[_WeightFormat] = ()
    facts_source: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_facts_of_its_name(cls, data: Any) -> Any:
        is_named = isinstance(data, Mapping) and isinstance(data.get("name"), str)
        return {**facts_in(data["name"]), **with_facts_that_are_told(data)} if is_named else data

    @field_validator("chip")
    @classmethod
    def _chip_is_known(cls, chip: str, info: ValidationInfo) -> str:
        key, name = device_key(chip), info.data.get("name", "")
        if info.data.get("kind") == "gpu" and family_of(key) is None and key != device_key(name):
            chips = {device_sheet(one).chip: family_of(device_sheet(one).chip) for one in shipped_names("device")}
            if key not in chips:
                known = unknown("chip", chip, [one for one, family in chips.items() if family is not None])
                raise ValueError(f"{known}; leave it out where no public curves are of it")
        return key

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if list(self.row_buckets) != sorted(set(self.row_buckets)):
            raise ValueError(f"row_buckets {list(self.row_buckets)} must be ascending without repeats")
        if (self.dispatch_s is None) != (self.dispatch_of is None):
            raise ValueError("dispatch_s and dispatch_of belong together: say whether it is paid by kernel or by graph")
        if (self.kernel_start_s is None) != (self.unhidden_share is None):
            raise ValueError("kernel_start_s and unhidden_share belong together: they are of one measured law")
        if self.row_buckets and not self.static_shapes:
            raise ValueError("row_buckets are of devices with static_shapes: true")
        return self

    def runs(self, weights: str) -> bool:
        """Return whether it runs weights of that format, or of the plain type like it, as far as is known."""
        like = stored_weights(weights).like
        alike = {weights, like, "fp16" if like == "bf16" else weights}
        return not self.weight_formats or bool(alike & {*self.weight_formats})


class LinkSheet(Sourced):
    """One kind of link.

    Attributes:
        bytes_per_s: bandwidth of one direction; None where nothing is copied (unified memory).
        latency_s: of an empty message.
        collective_latency_s: of one step of a collective, in which kernels wait for each other; None: as a message.
        mesh_links: of how many such links a device uses one for each other device of a group, all at once; None where
            a collective goes over one link.
        most_joined: how many devices bridges of this kind join; others talk through the CPU. None: all of a machine.
    """

    name: Annotated[str, Field(min_length=1)]
    bytes_per_s: ByteRates | None = None
    latency_s: _Times | None = None
    collective_latency_s: _Times | None = None
    mesh_links: Annotated[int, Field(ge=1)] | None = None
    most_joined: Annotated[int, Field(ge=2)] | None = None

    @property
    def step_s(self) -> Quantity | None:
        """Seconds of one step of a collective over it; None where its latency is not known either."""
        return self.collective_latency_s or self.latency_s


@cache
def shipped_names(kind: Kind) -> tuple[str, ...]:
    """Return ids of all that is shipped of a kind."""
    return tuple(sorted(path.stem for path in (_FOLDER / f"{kind}s").glob("*.yaml")))


def shipped_file(kind: Kind, name: str) -> Path:
    """Return the file of what is shipped under a name.

    Raises:
        ProfileError: there is none of that name; lists those there are.
    """
    if name not in (names := shipped_names(kind)):
        raise ProfileError(unknown(kind, name, names))
    return _FOLDER / f"{kind}s" / f"{name}.yaml"


@cache
def device_sheet(name: str) -> DeviceSheet:
    """Return a shipped data sheet of a device; errors as in `shipped_file`."""
    return load_yaml(shipped_file("device", name), DeviceSheet)


@cache
def link_sheet(name: str) -> LinkSheet:
    """Return a shipped data sheet of a link; errors as in `shipped_file`."""
    return load_yaml(shipped_file("link", name), LinkSheet)


def is_shipped(field: str, number: Quantity) -> bool:
    """Return whether a number is that of some shipped device, not what somebody says of his own."""
    return any(getattr(device_sheet(name), field) == number for name in shipped_names("device"))
