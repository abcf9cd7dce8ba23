"""Settings of a speed, as sources name them: `3`, `K=3`, `8k`, `4,096 tokens`, `n=3 at 16k`, `code`."""

import re
from typing import Final, NamedTuple

LARGEST_WINDOW: Final = 64
"""A number above it is of cached tokens."""
FORMS: Final = "a number drafted (3, K=3), cached tokens (8k, 4096), both (3 at 8k), or words without digits"
_GROUPS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BETWEEN: Final = re.compile(r"\s*(?:[,;/@]|\bat\b)\s*", re.IGNORECASE)
_DRAFTED: Final = re.compile(
    r"(?:(?:k|n|gamma|drafted|window|num_speculative_tokens)\s*[=:]?\s*)?(\d{1,2})(?:\s+(?:drafted|tokens))?",
    re.IGNORECASE,
)
_CACHED: Final = re.compile(r"(?:\D*[\s=])?(\d{1,9}(?:\.\d+)?)(\s?k)?(?:\s\D*)?", re.IGNORECASE)
_IN_NOTE: Final = re.compile(r"(?<![\d,./])(?<!\bof )(\d{1,2}) drafted(?: (?:a|per|at a) \w+)?\s*(?=$|[;,.)])")
"""At the end of a clause: `600 of 1,000 drafted tokens accepted` is of something else, as `12 of 20 drafted` is."""


class Setting(NamedTuple):
    """Tokens drafted and cached ones before them; None of what is not told."""

    drafted: int | None = None
    context: int | None = None

    def holds(self, drafted: int | None, context: int | None) -> bool:
        """Return whether it tells something, and nothing else than these."""
        return self != (None, None) and self.drafted in (None, drafted) and self.context in (None, context)


def setting_of(key: str) -> Setting | None:
    """Return what a key tells; None where a number in it may be of anything."""
    parts = [part for part in _BETWEEN.split(_GROUPS.sub("", key)) if re.search(r"\d", part)]
    told = [one for part in parts if (one := _number_of(part)) is not None]
    numbers = dict(told)
    return Setting(**numbers) if len(numbers) == len(parts) else None


def _number_of(part: str) -> tuple[str, int] | None:
    """Return what the number in a part of a key is of, and the number."""
    if (small := _DRAFTED.fullmatch(part)) is not None and int(small[1]) <= LARGEST_WINDOW:
        return "drafted", int(small[1])
    if (large := _CACHED.fullmatch(part)) is None:
        return None
    tokens = round(float(large[1]) * 1024) if large[2] else float(large[1])
    return ("context", int(tokens)) if tokens > LARGEST_WINDOW and tokens == int(tokens) else None


def drafted_by(note: str) -> int | None:
    """Return the number drafted that a note tells; None of any other."""
    told = _IN_NOTE.search(note)
    return int(told[1]) if told and 1 <= int(told[1]) <= LARGEST_WINDOW else None
