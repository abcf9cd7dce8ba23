"""Which schedules a large pair runs, and that there is memory for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from decoding.schedule import Schedule
from hwprofiles.placement import split_pairs, whole_lanes
from runtime.lanes.lane import LaneSpec
from runtime.memory.needs import available_bytes, gigabytes

EXIT_TOP_K, DRAFT_TOP_K = 4, 2
LEAST_BYTES: Final = 1_000_000_000
"""With less available the work ends."""


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


def require_memory() -> None:
    """Raise `SystemExit` if next to no memory is left: it is better to end than to be ended."""
    now = available_bytes()
    if now is not None and now < LEAST_BYTES:
        raise SystemExit(f"{gigabytes(now)} of memory are left; the same command goes on when there is more")
