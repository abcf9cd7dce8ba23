"""Small machines for tests of the simulator, with round numbers."""

from collections.abc import Mapping
from typing import Any

from hwprofiles.lane_profile import LaneProfile, Overhead
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Profile

NUM_LAYERS = 10
EXIT_LAYERS = (4, 7)


def constant(seconds: float, *, num_bytes: float = 0.0) -> LatencyTable:
    """A part that costs the same for 1..200 rows in any context."""
    return LatencyTable(
        rows=(1, 200), contexts=(0,), seconds=((seconds,), (seconds,)), bytes_per_call=num_bytes, source="by hand"
    )


def lane(name: str, *, dispatch_s: float = 0.0, **parts: float) -> LaneProfile:
    """A lane whose parts cost constant seconds; what is not named costs one second."""
    names = ("layer", "lm_head", "exit", "draft_step", "draft_step_features", "draft_streams", "head_step", "streams")
    seconds = dict.fromkeys(names, 1.0) | parts
    seconds.setdefault("draft_start", seconds["draft_step_features"])
    exit_s, head_step_s, streams_s = (seconds.pop(part) for part in ("exit", "head_step", "streams"))
    return LaneProfile(
        name=name,
        device="cpu",
        dispatch_s=dispatch_s,
        exit={layer: constant(exit_s) for layer in EXIT_LAYERS},
        heads=dict.fromkeys(("head", "other", "lookup"), constant(head_step_s)),
        streams={"streams": constant(streams_s)},
        **{part: constant(value) for part, value in seconds.items()},
    )


def with_overheads(
    lane: LaneProfile, seconds: Mapping[str, float], errors: Mapping[str, float] | None = None
) -> LaneProfile:
    """The lane with these overheads by key, and with what they may be off by."""
    known = dict.fromkeys([*seconds, *(errors or {})])
    table = {key: Overhead(seconds=seconds.get(key, 0.0), relative_error=(errors or {}).get(key, 0.0)) for key in known}
    return lane.model_copy(update={"overheads": table})


def reading(lane: LaneProfile, *, prefill: float, draft_prefill: float, head_prefill: float) -> LaneProfile:
    """A lane of which is known what reading takes that many seconds for every token, for 1..200 of them."""

    def table(row_s: float) -> LatencyTable:
        return LatencyTable(rows=(1, 200), contexts=(0,), seconds=((row_s,), (200 * row_s,)), source="by hand")

    tables = {"prefill": table(prefill), "draft_prefill": table(draft_prefill)}
    return lane.model_copy(update=tables | {"head_prefill": dict.fromkeys(("head", "other"), table(head_prefill))})


def machine(*lanes: LaneProfile, **fields: Any) -> Profile:
    """A profile of the given lanes, or of two plain ones."""
    lanes = lanes or (lane("target"), lane("draft"))
    return Profile(host={}, target="t", drafter="d", dtype="float32", num_layers=NUM_LAYERS, lanes=lanes, **fields)
