"""Drafters that a lane has loaded and may be asked for again.

Schedules that take turns on a lane have drafters of their own, and loading one takes as long as a text, on compiled
lanes longer still. Heads and trained drafts are small next to a target: a few of them stay.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

from runtime.drafters.window_drafter import WindowDrafter
from runtime.wire.operations import LoadDraft

KEPT_BYTES: Final = 300_000_000
"""Of the files of all that stay; a larger drafter is held only as long as it is the last one asked for."""


class KeptDrafters:
    """Drafters by what asked for them; those not asked for for longest go."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._drafters: OrderedDict[LoadDraft, tuple[WindowDrafter, int]] = OrderedDict()

    def get(self, operation: LoadDraft) -> WindowDrafter | None:
        """The drafter, if it has stayed."""
        if operation not in self._drafters:
            return None
        self._drafters.move_to_end(operation)
        return self._drafters[operation][0]

    def add(self, operation: LoadDraft, drafter: WindowDrafter) -> None:
        """Keep one, if it is small."""
        self._drafters[operation] = drafter, _file_bytes(operation.drafter)
        while self._drafters and sum(size for _, size in self._drafters.values()) > self._most_bytes:
            self._drafters.popitem(last=False)


def _file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
