"""Warnings of other programs that use the machine while it is measured."""

from __future__ import annotations

from typing import Final

from hwprofiles.other_use import Use
from planner.wording import counted

LESS_CERTAIN: Final = "less certain than on a quiet machine"
_SHOWN: Final = 0.05
"""Cores that are worth a number with one decimal."""


def busy_now(use: Use | None, effect: str = f"times that are measured now are {LESS_CERTAIN}") -> str | None:
    """Return the warning before or during the work; None on a quiet machine, or where the use is not known."""
    return _warning(use, "are using", "", effect)


def busy_meanwhile(use: Use | None, effect: str = f"what was measured is {LESS_CERTAIN}") -> str | None:
    """Return the warning when it is over."""
    return _warning(use, "used", " meanwhile", effect)


def weak_answer(use: Use | None) -> str | None:
    """Return the warning before an answer."""
    found = busy_meanwhile(use, f"the answer is {LESS_CERTAIN}")
    return None if found is None else f"{found} Run it again when nothing else runs."


def _warning(use: Use | None, verb: str, when: str, effect: str) -> str | None:
    if use is None or not use.is_noticeable:
        return None
    host = f" and the host of this virtual machine {use.host:.1f}" if use.host >= _SHOWN else ""
    return f"Other programs {verb} {use.programs:.1f} of the {counted(use.num_cores, 'core')}{host}{when}: {effect}."
