"""Which schedules a large pair runs, and what memory its lanes take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from decoding.schedule import Schedule
from hwprofiles.placement import split_pairs, whole_lanes
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.memory.needs import available_bytes, gigabytes

EXIT_TOP_K, DRAFT_TOP_K = 4, 2
LEAST_BYTES: Final = 1_000_000_000
"""With less available the work ends."""
_STATUS: Final = {"VmHWM": "most_resident_bytes", "VmRSS": "resident_bytes", "RssAnon": "own_bytes"}


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

    def entry(self, engine: Engine, lanes: Sequence[LaneSpec]) -> dict[str, Any]:
        """All of it."""
        self.look()
        return {
            "available_bytes_before": self.start_bytes,
            "least_available_bytes": self.least_bytes,
            "lanes": {lane.name: _resident(engine.lane(lane.name).process_id) for lane in lanes},
        }


def _resident(process: int | None) -> dict[str, int]:
    """What a process takes, and took at most: files that are mapped count there, which the system can give up."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {ours: 1024 * int(fields[name].split()[0]) for name, ours in _STATUS.items() if name in fields}
