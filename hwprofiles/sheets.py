"""Data sheets of devices and links: published numbers, each with its source and its status.

Peaks are dense, bandwidths are per direction, units are SI and base 10. Measurements of the user's machine are not
here: calibration writes them into a profile (`hwprofiles.profile`).
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

# Types of numbers with their plausible ranges in SI units.
_Times = Annotated[Quantity, within(1e-12, LONGEST_S)]
ByteRates = Annotated[Quantity, within(1.0, 1e18)]
OperationRates = Annotated[Quantity, within(1.0, 1e21)]
Capacities = Annotated[Quantity, within(1.0, 1e15)]
Powers = Annotated[Quantity, within(1e-6, 1e6)]
_Shares = Annotated[Quantity, within(1e-6, 1.0)]
_Prices = Annotated[Quantity, within(1e-6, 1e9)]
GrowthsPerRow = Annotated[Quantity, within(1e-6, 4.0)]  # up to 4: old kernels read the weights again for each row
WriteOffs = Annotated[Quantity, within(LONGEST_S, 1e10)]

STARTED_BY: Final = {"cpu": "kernel", "gpu": "kernel", "npu": "graph"}
"""Default of `dispatch_of`."""

_TOLD: Final = ("maker", "chip")
_WeightFormat = Literal["fp32", "bf16", "fp16", "fp8", "int8", "fp4", "nf4", "int4"]


class Sourced(StrictModel):
    """A pydantic model whose numbers are `Quantity`s with sources; a bare number counts as guessed."""

    @model_validator(mode="before")
    @classmethod
    def _with_bare_numbers(cls, data: Any) -> Any:
        return with_quantities(data, cls) if isinstance(data, Mapping) else data

    @property
    def quantities(self) -> dict[str, Quantity]:
        """The quantities that are given, by field."""
        values = {field: getattr(self, field) for field in quantity_fields(type(self))}
        return {field: value for field, value in values.items() if value is not None}


class Priced(Sourced):
    """Something rented (`price_usd_per_hour`), or bought (`price_usd`) and written off over `write_off_s` of use."""

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
        """The rent, else the price over its write-off time (without power); None if neither is known."""
        if self.price_usd_per_hour is not None:
            return self.price_usd_per_hour.value
        if self.price_usd is None or self.write_off_s is None:
            return None
        return self.price_usd.value / self.write_off_s.value * 3600.0


def with_facts_that_are_told(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device's data without an empty `maker` or `chip`, so that they are derived from its name instead."""
    return {field: value for field, value in data.items() if field not in _TOLD or value not in (None, "")}


class DeviceSheet(Priced):
    """One compute device.

    Attributes:
        name, aliases: the maker's name, and other names that people use.
        maker: the maker, if it decides which engines run on the device.
        chip: the device's key in public curves (`hwprofiles.curves.names`), from which its architecture is known.
        before_volta: whether it is an NVIDIA GPU older than Volta, for which vLLM and the like have no kernels.
        host_link: sheet of the usual link to its CPU; None for devices on the CPU's chip.
        peer_link: sheet of the usual link to devices of the same kind; None if they talk through the CPU.
        memory_pool: name of the memory it shares with other devices of its chip; None if it has its own.
        bf16_flops: dense half-precision peak, FLOP/s; with status `measured`, the rate that was reached.
        int8_ops: dense peak of 8-bit integers, operations/s.
        fp8_flops, fp4_flops: dense peaks of 8-bit and 4-bit floating point (32-bit accumulation), FLOP/s.
        memory_bytes_per_s: bandwidth of its memory, or of the pool that it shares.
        memory_cap_bytes_per_s: the most that this device alone can draw from a shared pool; None if not known.
        int8_cap_bytes_per_s, int4_cap_bytes_per_s: the same for weights in these formats, if unpacking is the limit.
        memory_bytes: capacity of that memory.
        memory_efficiency: share of `memory_bytes_per_s` that this device reaches alone.
        cache_efficiency: bandwidth at which a pass reads the KV cache, over the one that it reaches with the weights.
        flops_efficiency: share of `bf16_flops` that was reached.
        growth_per_row: relative slowdown of memory-bound kernels per further row, up to eight rows.
        kernel_start_s: of a measured kernel law: start of each kernel in a replayed graph, added to reading and
            computing.
        unhidden_share: of a measured kernel law: share of the computing time (at peak) that reading does not hide.
        engine_step_s: time of the engine's host code per pass, added to the kernels' time.
        starts_of_mixtures: kernels that an eager framework starts for a mixture of experts, over a dense model's.
        engine: the engine on the device, such as `llama.cpp` or `llama.cpp vulkan`; None: the default one.
        power_w: board or package power while working.
        idle_power_w: board or package power while waiting.
        power_of: whether the power is of this device alone, or of a package that it shares with others.
        dispatch_s: fixed cost of starting one kernel or one compiled graph.
        dispatch_of: what `dispatch_s` starts: a `kernel` (several per layer) or a `graph` (one per model part).
        two_streams_slowdown: time of work on one of two busy streams of this device, over its time alone.
        static_shapes: whether shapes must be compiled in advance, so that rows and contexts are padded to buckets.
        row_buckets: numbers of rows that it is compiled for, ascending; empty if not known.
        max_prompt_tokens: longest prompt that it is compiled for; None if unlimited or not known.
        weight_formats: weight types that it runs; empty if not known.
        facts_source: source of `static_shapes`, `row_buckets`, `max_prompt_tokens` and `weight_formats`.
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
    cache_efficiency: Annotated[Quantity, within(1e-3, 2.0)] | None = None
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
        """Return whether it runs a weight format, or the plain type that stands in for it; True if nothing is known."""
        like = stored_weights(weights).like
        alike = {weights, like, "fp16" if like == "bf16" else weights}
        return not self.weight_formats or bool(alike & {*self.weight_formats})


class LinkSheet(Sourced):
    """One kind of link.

    Attributes:
        bytes_per_s: bandwidth per direction; None if nothing is copied (unified memory).
        latency_s: time of an empty message.
        collective_latency_s: time of one step of a collective, whose kernels wait for each other; None: `latency_s`.
        mesh_links: links of a device in a mesh: a collective uses one to each other device of the group, all at once;
            None if it uses a single link.
        most_joined: devices that one bridge joins (devices of different bridges talk through the CPU); None: all.
    """

    name: Annotated[str, Field(min_length=1)]
    bytes_per_s: ByteRates | None = None
    latency_s: _Times | None = None
    collective_latency_s: _Times | None = None
    mesh_links: Annotated[int, Field(ge=1)] | None = None
    most_joined: Annotated[int, Field(ge=2)] | None = None

    @property
    def step_s(self) -> Quantity | None:
        """Seconds of one step of a collective over this link; None if no latency is known."""
        return self.collective_latency_s or self.latency_s


@cache
def shipped_names(kind: Kind) -> tuple[str, ...]:
    """Return the ids of all shipped files of a kind."""
    return tuple(sorted(path.stem for path in (_FOLDER / f"{kind}s").glob("*.yaml")))


def shipped_file(kind: Kind, name: str) -> Path:
    """Return the path of the shipped file of a name; raises `ProfileError`, which lists the names, if there is none."""
    if name not in (names := shipped_names(kind)):
        raise ProfileError(unknown(kind, name, names))
    return _FOLDER / f"{kind}s" / f"{name}.yaml"


@cache
def device_sheet(name: str) -> DeviceSheet:
    """Return the shipped data sheet of a device; raises as `shipped_file`."""
    return load_yaml(shipped_file("device", name), DeviceSheet)


@cache
def link_sheet(name: str) -> LinkSheet:
    """Return the shipped data sheet of a link; raises as `shipped_file`."""
    return load_yaml(shipped_file("link", name), LinkSheet)


def is_shipped(field: str, number: Quantity) -> bool:
    """Return whether some shipped device sheet has exactly this quantity; False for a user's number."""
    return any(getattr(device_sheet(name), field) == number for name in shipped_names("device"))
