"""Whether something else is using this machine: then times are less certain."""

from __future__ import annotations

import os
from typing import Final

_QUIET_SHARE: Final = 0.3
"""Share of the cores that may be in use; system services alone stay below."""


def busy_note(num_cores: int) -> str | None:
    """A sentence on the load of the last minute, None on a quiet machine or where the load is not known."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return note_on(load, num_cores)


def note_on(load: float, num_cores: int) -> str | None:
    """`busy_note` of a load average."""
    if load <= _QUIET_SHARE * num_cores:
        return None
    cores = f"{num_cores} core{'' if num_cores == 1 else 's'}"
    return (
        f"This machine was busy (load average {load:.1f} on {cores}) when this began: if other programs went on "
        "running, what was measured is less certain, and so is what was predicted from it."
    )
