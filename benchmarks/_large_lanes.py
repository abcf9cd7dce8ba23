"""Which lanes a large pair fits on, which schedules these can run, and what memory the lanes really take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from decoding.schedule import Schedule
from hwprofiles.placement import split_pairs, whole_lanes
from mirrorsd.model_pair import ModelPair
from runtime.backends.lane_device import Device
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.memory.needs import LaneNeed, available_bytes, draft_size, gigabytes, memory_needed
from runtime.models.config import ModelConfig

SPARE_BYTES: Final = 3_000_000_000
"""That lanes leave free, for whoever reads the files that weights are mapped from, and for this process."""
EXIT_TOP_K, DRAFT_TOP_K = 4, 2
LEAST_BYTES: Final = 1_000_000_000
"""With less available the work ends."""
_KEPT_BRANCHES: Final = 4
"""Memories of branches that a graph keeps, one for each of its requests (`runtime.backends.openvino.calls`)."""
_STATUS: Final = {"VmHWM": "most_resident_bytes", "VmRSS": "resident_bytes", "RssAnon": "own_bytes"}


class ChosenLanes(NamedTuple):
    """Lanes that fit together.

    Attributes:
        lanes: these.
        needs: what each takes with both models, as worked out before loading.
        available_bytes: the memory that there was; None if the system does not tell.
        left_out: a sentence on other lanes, None if there are none.
    """

    lanes: tuple[LaneSpec, ...]
    needs: Mapping[str, LaneNeed]
    available_bytes: int | None
    left_out: str | None


def lanes_that_fit(lanes: Sequence[LaneSpec], pair: ModelPair, num_branches: int, num_tokens: int) -> ChosenLanes:
    """The most of some lanes that fit in memory together: all, those that are parts of others, a whole one.

    Each has both models and the branches, as all have that are calibrated.

    Raises:
        SystemExit: not even one fits.
    """
    available = available_bytes()
    needs = {lane.name: _need(lane.name, pair, num_branches, num_tokens) for lane in lanes}
    for chosen in _choices(lanes):
        own = {lane.name: needs[lane.name] for lane in chosen}
        if available is None or _total(own) + SPARE_BYTES <= available:
            return ChosenLanes(chosen, own, available, _left_out(chosen, needs, available))
    msg = f"one lane takes {gigabytes(_total(own))} and {gigabytes(SPARE_BYTES)} are to be left free; available are "
    raise SystemExit(msg + gigabytes(available or 0))


def schedules_of(lanes: Sequence[LaneSpec], exit_layer: int, windows: Sequence[int]) -> list[Schedule]:
    """Plain on every lane; synchronous, split and on a whole lane; mirror from the exit and from the draft's own roots.

    The target is on the first of two lanes that are split, and mirror has the shortest window.
    """
    plain = [Schedule(method="autoregressive", target_lane=lane.name) for lane in lanes]
    split, whole = split_pairs(lanes)[:1], whole_lanes(lanes)[:1]
    placements = [*split, *((lane, lane) for lane in whole)]
    synchronous = [
        Schedule(method="speculative", target_lane=target, draft_lane=draft, num_speculative_tokens=window)
        for target, draft in placements
        for window in windows
    ]
    return [*plain, *synchronous, *(one for pair in split for one in mirrors(pair, exit_layer, min(windows)))]


def mirrors(lanes: tuple[str, str], exit_layer: int, window: int) -> Iterator[Schedule]:
    """Mirror from the exit, and from the draft's own roots."""
    shared: dict[str, Any] = {"method": "mirror", "num_speculative_tokens": window}
    shared |= {"target_lane": lanes[0], "draft_lane": lanes[1]}
    yield Schedule(root_source="exit", exit_layer=exit_layer, exit_top_k=EXIT_TOP_K, **shared)
    yield Schedule(root_source="draft", draft_top_k=DRAFT_TOP_K, **shared)


class MemoryWatch:
    """The least memory that was available while it was asked, and what lanes' processes say of themselves."""

    def __init__(self) -> None:
        self.start_bytes = self.least_bytes = available_bytes()

    def look(self) -> None:
        """Now.

        Raises:
            SystemExit: next to none is left, since something else takes it; it is better to end than to be ended.
        """
        now = available_bytes()
        if now is None or self.least_bytes is None:
            return
        self.least_bytes = min(now, self.least_bytes)
        if now < LEAST_BYTES:
            raise SystemExit(f"{gigabytes(now)} of memory are left; the same command goes on when there is more")

    def entry(self, engine: Engine, chosen: ChosenLanes) -> dict[str, Any]:
        """All of it, next to what was worked out before."""
        self.look()
        return {
            "available_bytes_before": self.start_bytes,
            "least_available_bytes": self.least_bytes,
            "spare_bytes": SPARE_BYTES,
            "lanes": {
                name: {"needed_bytes": need.total, **_resident(engine.lane(name).process_id)}
                for name, need in chosen.needs.items()
            },
            "left_out": chosen.left_out,
        }


def _resident(process: int | None) -> dict[str, int]:
    """What a process takes, and took at most: files that are mapped count there, which the system can give up."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {ours: 1024 * int(fields[name].split()[0]) for name, ours in _STATUS.items() if name in fields}


def _need(lane: str, pair: ModelPair, num_branches: int, num_tokens: int) -> LaneNeed:
    """Of a lane that has a target, a draft, and as many memories of branches as its graphs keep."""
    target, other = ModelConfig.from_folder(pair.target_folder), f"{Device.of_lane(lane).name}#2"
    assert pair.drafter is not None, "a pair"
    draft = draft_size(pair.drafter.folder, target, pair.dtype, shares_lane=True)
    (mirror, _) = mirrors((lane, other), 1, 1)
    widest = mirror.model_copy(update={"exit_top_k": -(-num_branches // 2)})
    needs = memory_needed(target, widest, dtype=pair.dtype, num_tokens=num_tokens, draft=draft)
    both = needs[lane] + needs[other]
    return replace(both, process=needs[lane].process, branches=_KEPT_BRANCHES * both.branches)


def _choices(lanes: Sequence[LaneSpec]) -> Iterator[tuple[LaneSpec, ...]]:
    """The most first."""
    wholes = whole_lanes(lanes)
    apart = tuple(lane for lane in lanes if len(lanes) > 1 and lane.name not in wholes)
    yield tuple(lanes)
    if len(apart) > 1:
        yield apart
    yield from ((lane,) for name in wholes for lane in lanes if lane.name == name)


def _left_out(chosen: Sequence[LaneSpec], needs: Mapping[str, LaneNeed], available: int | None) -> str | None:
    others = [name for name in needs if name not in {lane.name for lane in chosen}]
    if not others:
        return None
    return (
        f"{' and '.join(others)}: all {len(needs)} lanes together take {gigabytes(_total(needs))}, "
        f"{gigabytes(available or 0)} are available, and {gigabytes(SPARE_BYTES)} are left free"
    )


def _total(needs: Mapping[str, LaneNeed]) -> int:
    return sum(need.total for need in needs.values())
