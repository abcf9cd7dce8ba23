"""One lane of a profile: the cost of each model part on it, its overheads, and what its devices exchange.

Parts are timed in loops, with warm caches, alone and without replies. What a run takes beyond that is told by event::

    first_step      the first step of a rollout, of branches, or of finishing one: the lane did something else before
    exit            a prefix of the target, whose exit replies while the draft works
    features        a pass of the target that returns hidden states to a drafter

`benchmarks/ablations.py` says what each buys. A drafter that is no draft model has keys of its own: `EVENT:DRAFTER`.
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
"""Events that each drafter has for itself."""


class Overhead(StrictModel):
    """Seconds that an event takes, and the half-width (90 %) of what the whole operation may be off by, relative."""

    seconds: Seconds
    relative_error: RelativeError = 0.0


NO_OVERHEAD: Final = Overhead(seconds=0.0)


def _key(event: Event, drafter: str | None) -> str:
    return event if drafter is None else f"{event}:{drafter}"


def event_of(key: str) -> str:
    """Return the event of a key."""
    return key.partition(":")[0]


_NO_LONGER: Final = "draft_round"
"""An event of the profiles in benchmarks/results/demos that is passed over (benchmarks/ablations.py)."""


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
    """Several devices as one lane, whose tables are one member's share; collectives come on top.

    A tensor-parallel model has two all-reduces a layer (Megatron, 1909.08053): `{layer: 2}` of a target, and twice its
    layers of a whole `draft_step` or `prefill`; one of parallel tracks has one for each segment of its layers.

    Attributes:
        latency_s, bytes_per_s: of the links between members, per direction.
        reduced_bytes_per_row: an all-reduce's bytes for each row: its hidden state.
        gathered_bytes_per_row: an all-gather's bytes for each row: the candidates of all members.
        all_reduces, all_gathers: number in one call of a part, by the name of its tables (`LanePart`).
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
        device: cores under torch, or a device as `mirrorsd devices` lists it, such as `openvino:CPU`. Acceptance holds
            for the lanes of the back end that it was recorded on.
        kind: what that is; GPUs and NPUs that a calibration names have to say it, which older profiles did not.
        devices: a platform's devices that the lane occupies, several for a group; empty for a part of this machine.
        dispatch_s: fixed cost of one operation: half of it before it starts, half after it ends.
        overheads: what events take beyond the tables, by key, see the module.
        layer: one target layer.
        lm_head: everything after the last layer of a verification.
        exit: everything after an exit layer, by that layer.
        draft_step: a whole step of the draft, selection included: one row, or one row of each of several branches and
            as many more as they have guesses.
        draft_step_features: a step that reads the next tokens of a sequence with their exit features.
        draft_start: one step that reads the window's rows with exit features and the first row of each branch.
        draft_streams: the draft's streams of one row or of one row of each branch; their rows are guesses.
        draft_reads: what an engine's loop has its draft model read of the rows of every verification, all at once.
        heads: a whole step of a draft head, by the drafter's name.
        streams: what the target's streams add to a verification, by the drafter's name.
        prefill, draft_prefill, head_prefill: reading a prompt of so many rows, by target, draft, or head.
        group: what its devices exchange, where it is several.
        anchor: the pass that all times were compared with; None where nothing was measured.
        relative_error: common error of this lane's times (half-width, 90 %), beyond that of all lanes.
        errs_with: equal for all lanes whose times are wrong together, such as equal devices with one sheet; None for a
            lane that errs on its own.
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
        """The name of its errors."""
        return self.errs_with or self.name

    def overhead(self, event: Event, drafter: str | None = None) -> Overhead:
        """Return the overhead of an event of a drafter (None: of the draft model); without an entry there is none."""
        return self.overheads.get(_key(event, drafter), NO_OVERHEAD)

    def with_overhead(self, event: Event, overhead: Overhead, drafter: str | None = None) -> Self:
        """Return a copy with one overhead added or replaced."""
        return self.model_copy(update={"overheads": self.overheads | {_key(event, drafter): overhead}})

    def with_overheads_scaled(self, factors: Mapping[Event, float]) -> Self:
        """Return a copy with the seconds of these events multiplied, for all drafters."""
        scaled = {
            key: one.model_copy(update={"seconds": one.seconds * factors.get(cast("Event", event_of(key)), 1.0)})
            for key, one in self.overheads.items()
        }
        return self.model_copy(update={"overheads": scaled})

    def scaled(self, factors: Mapping[LanePart, float | Sequence[float]]) -> Self:
        """Return a copy with all times of some parts multiplied, see `LatencyTable.scaled`."""
        return self.changed(factors, LatencyTable.scaled)

    def changed(self, values: Mapping[LanePart, V], change: Callable[[LatencyTable, V], LatencyTable]) -> Self:
        """Return a copy in which each table of some parts is what `change` makes of it and of the part's value."""
        found: dict[str, object] = {}
        for part, value in values.items():
            tables = getattr(self, part)
            if isinstance(tables, dict):
                found[part] = {key: change(table, value) for key, table in tables.items()}
            elif tables is not None:
                found[part] = change(tables, value)
        return self.model_copy(update=found)
