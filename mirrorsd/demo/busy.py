"""The warning of other programs that use the machine while it is measured."""

from __future__ import annotations

from typing import Final

from hwprofiles.other_use import Use
from planner.wording import counted

LESS_CERTAIN: Final = "less certain than on a quiet machine"
_SHOWN: Final = 0.05
"""Cores that are worth a number with one decimal."""


def busy(use: Use | None, effect: str = f"what is measured is {LESS_CERTAIN}", *, is_over: bool = False) -> str | None:
    """Return the warning, during the work or when it is over; None on a quiet machine, or where nobody knows."""
    if use is None or not use.is_noticeable:
        return None
    host = f" and the host of this virtual machine {use.host:.1f}" if use.host >= _SHOWN else ""
    verb, when = ("used", " meanwhile") if is_over else ("are using", "")
    return f"Other programs {verb} {use.programs:.1f} of the {counted(use.num_cores, 'core')}{host}{when}: {effect}."
