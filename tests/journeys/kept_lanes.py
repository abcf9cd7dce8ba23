"""Lanes that stay when an engine ends, for the next one on the same lanes: it loads only what they have not loaded."""

from typing import Any

from runtime.lanes.lane import Lane, LaneSpec
from runtime.lanes.lane_set import LaneSet


class KeptLanes:
    """The lanes of engines, by their specs, until `close`."""

    def __init__(self) -> None:
        self._kept: dict[tuple[LaneSpec, ...], tuple[dict[str, Lane], dict[str, dict[str, tuple[Any, Any]]]]] = {}

    def lane_set(self, specs, **models):
        """In the place of `LaneSet`."""
        made = LaneSet(specs, **models)
        made._lanes, made._loaded = self._kept.setdefault(tuple(specs), (made._lanes, made._loaded))
        made.close = lambda: None
        return made

    def close(self):
        for lanes, _ in self._kept.values():
            for lane in lanes.values():
                lane.close()
