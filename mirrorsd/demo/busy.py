"""Whether something else is using this machine: then times are less certain."""

from __future__ import annotations

import os
from typing import Final

from planner.wording import counted

_QUIET_SHARE: Final = 0.3
"""Share of the cores that may be in use; system services alone stay below."""


def busy_note(num_cores: int, load: float | None = None) -> str | None:
    """A sentence on the load of the last minute, None on a quiet machine or where the load is not known."""
    if load is None:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= _QUIET_SHARE * num_cores:
        return None
    return (
        f"This machine was busy (load average {load:.1f} on {counted(num_cores, 'core')}) when this began: if other "
        "programs went on running, what was measured is less certain, and so is what was predicted from it."
    )
