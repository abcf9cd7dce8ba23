"""One lane of a profile: the cost of each model part, overheads, and communication between the lane's devices.

Calibration times each part in a loop: warm caches, nothing else running, no replies sent. The time that an operation of
a run takes beyond that is an overhead, stored by event:

    first_step      the first draft step after the lane did something else
    exit            the target's layers up to an early exit, which replies while the draft works
    features        a pass of the target that returns hidden states to a drafter

Keys are `EVENT` for a draft model and `EVENT:DRAFTER` for any other drafter. `benchmarks/ablations.py` measures by how
much each event improves predictions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeVar, cast, get_args

from pydantic import AfterValidator, Field, model_validator

from decoding.validation import IntKey, Many
from decoding.yaml_file import StrictModel
from hwprofiles.bounds import Bytes, BytesPerSecond, RelativeError, Seconds
from hwprofiles.latency_table import Anchor, LatencyTable
from hwprofiles.sheets import DeviceKind

V = TypeVar("V")

_NO_CPU: Final = re.compile(r"cuda:\d+|openvino:[GN]PU(\.\d+)?")
"""Names that calibrations give to GPUs and NPUs."""

LanePart = Literal[
    "layer",
    "lm_head",
    "exit",
    "draft_step",
    "draft_step_features",
    "draft_start",
    "draft_streams",
    "draft_reads",
    "heads",
    "streams",
    "prefill",
    "draft_prefill",
    "head_prefill",
]
"""The fields of a `LaneProfile` that hold tables."""

PARTS: Final[tuple[LanePart, ...]] = get_args(LanePart)
TARGET_PARTS: Final[tuple[LanePart, ...]] = ("layer", "lm_head", "exit", "prefill")
"""Parts of the target; all others are the cost of drafting."""
DECODING_PARTS: Final = tuple(part for part in PARTS if not part.endswith("prefill"))

Event = Literal["first_step", "exit", "features"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
_EVENTS_OF_DRAFTERS: Final = ("first_step", "features")
"""Events whose overhead may be given per drafter (`EVENT:DRAFTER`)."""


class Overhead(StrictModel):
    """Seconds that an event adds, and the relative error (half-width, 90 %) of the whole operation's time."""

    seconds: Seconds
    relative_error: RelativeError = 0.0


NO_OVERHEAD: Final = Overhead(seconds=0.0)


def _key(event: Event, drafter: str | None) -> str:
    return event if drafter is None else f"{event}:{drafter}"


def event_of(key: str) -> str:
    """Return the event of a key `EVENT` or `EVENT:DRAFTER`."""
    return key.partition(":")[0]


_NO_LONGER: Final = "draft_round"
"""A former event, in profiles of demos that benchmarks/ablations.py reads from earlier commits: ignored."""


def _require_events(overheads: dict[str, Overhead]) -> dict[str, Overhead]:
    overheads = {key: one for key, one in overheads.items() if key != _NO_LONGER}
    for key in overheads:
        event, colon, drafter = key.partition(":")
        if event not in EVENTS or (colon and not (drafter and event in _EVENTS_OF_DRAFTERS)):
            named = " and ".join(f"{event}:DRAFTER" for event in _EVENTS_OF_DRAFTERS)
            raise ValueError(f"{key!r} is no event with an overhead: {', '.join(EVENTS)}; of a drafter {named}")
    return overheads


CallsOfPart = Annotated[int, Field(ge=0, le=100_000)]


class DeviceGroup(StrictModel):
    """Several devices that form one lane. The lane's tables hold the time of one member's share, without collectives.

    A tensor-parallel model has two all-reduces a layer (Megatron, 1909.08053): `{layer: 2}` for a target, and 2 x
    number of layers for a whole `draft_step` or `prefill`. A model of parallel tracks has one per segment of layers.

    Attributes:
        latency_s, bytes_per_s: of the links between members, per direction.
        reduced_bytes_per_row: bytes of an all-reduce per row: the hidden state.
        gathered_bytes_per_row: bytes of an all-gather per row: the candidates of all members.
        all_reduces, all_gathers: number per call of each part (`LanePart`).
    """

    num_devices: Annotated[int, Field(ge=1, le=100_000)]
    latency_s: Seconds
    bytes_per_s: BytesPerSecond
    reduced_bytes_per_row: Bytes = 0.0
    gathered_bytes_per_row: Bytes = 0.0
    all_reduces: Mapping[str, CallsOfPart] = Field(default={})
    all_gathers: Mapping[str, CallsOfPart] = Field(default={})
    source: str


class LaneProfile(StrictModel):
    """One lane: where it runs, and the cost of each model part on it.

    Attributes:
        device: `generic-cpu` for cores under torch, else as `mirrorsd devices` lists it, such as `openvino:CPU`. An
            acceptance record is valid for lanes of the back end that it was recorded on.
        kind: kind of `device`; required for calibrated GPUs and NPUs (older profiles do not have it).
        devices: a platform's devices that the lane occupies, several for a group; empty for a part of this machine.
        dispatch_s: fixed cost of one operation: half of it before it starts, half after it ends.
        overheads: seconds that events add to the tables' times, by key (see the module).
        layer: one target layer.
        lm_head: everything after the last layer of a verification.
        exit: everything after an exit layer, by that layer.
        draft_step: a whole draft step with token selection; its rows are one per branch, plus the branches' guesses.
        draft_step_features: a draft step that reads the next tokens of a sequence with their exit features.
        draft_start: one draft step that reads the window's rows with exit features, and each branch's first row.
        draft_streams: the draft's stream heads; their rows are guesses, for one row or for one row of each branch.
        draft_reads: the draft model's pass over all rows of a verification, as some engines do after each one.
        heads: a whole step of a draft head, by the drafter's name.
        streams: what the target's streams add to a verification, by the drafter's name.
        prefill, draft_prefill, head_prefill: reading a prompt, by its rows: target, draft model, draft heads by name.
        group: communication between the devices of a group; None for a single device.
        anchor: the pass that all times were compared with; None if nothing was measured.
        relative_error: common error of this lane's times (half-width, 90 %), beyond that of all lanes.
        errs_with: an id shared by lanes whose errors are the same, such as equal devices with one sheet; None: the
            lane's error is independent.
    """

    name: str
    device: str
    kind: DeviceKind = "cpu"
    devices: Many[str] = ()
    cores: Many[Annotated[int, Field(ge=0, le=100_000)]] = ()
    dispatch_s: Seconds
    overheads: Annotated[dict[str, Overhead], AfterValidator(_require_events)] = Field(default={})
    layer: LatencyTable | None = None
    lm_head: LatencyTable | None = None
    exit: dict[IntKey, LatencyTable] = Field(default={})
    draft_step: LatencyTable | None = None
    draft_step_features: LatencyTable | None = None
    draft_start: LatencyTable | None = None
    draft_streams: LatencyTable | None = None
    draft_reads: LatencyTable | None = None
    heads: dict[str, LatencyTable] = Field(default={})
    streams: dict[str, LatencyTable] = Field(default={})
    prefill: LatencyTable | None = None
    draft_prefill: LatencyTable | None = None
    head_prefill: dict[str, LatencyTable] = Field(default={})
    group: DeviceGroup | None = None
    anchor: Anchor | None = None
    relative_error: RelativeError = 0.0
    errs_with: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _says_its_kind(cls, data: Any) -> Any:
        if isinstance(data, dict) and "kind" not in data and _NO_CPU.fullmatch(str(data.get("device"))):
            raise ValueError(f"the lane does not say which kind of device {data['device']} is: calibrate again")
        return data

    @property
    def num_threads(self) -> int:
        """Threads that the lane computes with: one on each of its cores."""
        return max(1, len(self.cores))

    @property
    def errs_as(self) -> str:
        """`errs_with`, else the lane's name: lanes with equal values have the same error."""
        return self.errs_with or self.name

    def overhead(self, event: Event, drafter: str | None = None) -> Overhead:
        """Return the overhead of an event for a drafter (None: the draft model); `NO_OVERHEAD` without an entry."""
        return self.overheads.get(_key(event, drafter), NO_OVERHEAD)

    def with_overhead(self, event: Event, overhead: Overhead, drafter: str | None = None) -> Self:
        """Return a copy with one overhead added or replaced."""
        return self.model_copy(update={"overheads": self.overheads | {_key(event, drafter): overhead}})

    def with_overheads_scaled(self, factors: Mapping[Event, float]) -> Self:
        """Return a copy in which each event's seconds are multiplied by its factor, for all drafters."""
        scaled = {
            key: one.model_copy(update={"seconds": one.seconds * factors.get(cast("Event", event_of(key)), 1.0)})
            for key, one in self.overheads.items()
        }
        return self.model_copy(update={"overheads": scaled})

    def at_pace(self, pace: float) -> Self:
        """Return a copy whose times are all `pace` times as long, but for a group's communication."""
        lane = self.scaled(dict.fromkeys(PARTS, pace)).with_overheads_scaled(dict.fromkeys(EVENTS, pace))
        anchor = self.anchor and self.anchor.model_copy(update={"seconds": pace * self.anchor.seconds})
        return lane.model_copy(update={"dispatch_s": pace * self.dispatch_s, "anchor": anchor})

    def scaled(self, factors: Mapping[LanePart, float | Sequence[float]]) -> Self:
        """Return a copy with the times of some parts multiplied, see `LatencyTable.scaled`."""
        return self.changed(factors, LatencyTable.scaled)

    def changed(self, values: Mapping[LanePart, V], change: Callable[[LatencyTable, V], LatencyTable]) -> Self:
        """Return a copy with each table of the parts in `values` replaced by `change(table, value)`."""
        found: dict[str, object] = {}
        for part, value in values.items():
            tables = getattr(self, part)
            if isinstance(tables, dict):
                found[part] = {key: change(table, value) for key, table in tables.items()}
            elif tables is not None:
                found[part] = change(tables, value)
        return self.model_copy(update=found)
