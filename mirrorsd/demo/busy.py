"""Sentences on other programs that use the machine while it is measured."""

from __future__ import annotations

from typing import Final

from hwprofiles.other_use import Use
from planner.wording import counted

LESS_CERTAIN: Final = "less certain than on a quiet machine"
_SHOWN: Final = 0.05
"""Cores that are worth a number with one decimal."""


def busy_now(use: Use | None, effect: str = f"times that are measured now are {LESS_CERTAIN}") -> str | None:
    """Said before or during the work; None on a quiet machine, or where the use is not known."""
    if use is None or not use.is_noticeable:
        return None
    return f"{_who(use, 'are using', 'takes')}: {effect}."


def busy_meanwhile(use: Use | None, effect: str = f"what was measured is {LESS_CERTAIN}") -> str | None:
    """Said when it is over."""
    if use is None or not use.is_noticeable:
        return None
    return f"{_who(use, 'used', 'took')} meanwhile: {effect}."


def weak_answer(use: Use | None) -> str | None:
    """Said before an answer."""
    found = busy_meanwhile(use, f"the answer is {LESS_CERTAIN}")
    return None if found is None else f"{found} Run it again when nothing else runs."


def _who(use: Use, programs_verb: str, host_verb: str) -> str:
    """Such as `Other programs used 0.8 of the 2 cores, and the host of this virtual machine took 0.1`."""
    cores = f"of the {counted(use.num_cores, 'core')}" if use.num_cores > 1 else "of the only core"
    parts = []
    if use.programs >= _SHOWN:
        parts.append(f"other programs {programs_verb} {use.programs:.1f} {cores}")
    if use.host >= _SHOWN:
        parts.append(f"the host of this virtual machine {host_verb} {use.host:.1f} {'' if parts else cores}".rstrip())
    if not parts:
        parts.append(f"other programs and the host {programs_verb} {use.programs + use.host:.2f} {cores}")
    text = ", and ".join(parts)
    return text[:1].upper() + text[1:]
