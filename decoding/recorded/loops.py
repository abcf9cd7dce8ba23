"""Texts that repeat themselves: small models fall into loops, which whatever drafts guesses; real texts seldom do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LONGEST_CYCLE: Final = 16
_LEAST_CYCLES: Final = 3
_LEAST_SHARE: Final = 0.25
"""Of a text that its cycle at the end takes."""
_GRAM: Final = 4
_MOST_REPEATED: Final = 0.5
"""Share of grams that stood in the text before: lists and code stay below."""


def repeats_itself(text: Sequence[int]) -> bool:
    """Whether token ids end in a cycle, three times round, or have more than half of their 4-grams twice."""
    return _ends_in_cycle(text) or _ends_in_cycle(text[:-1]) or _repeated_share(text) > _MOST_REPEATED


def _ends_in_cycle(text: Sequence[int]) -> bool:
    least = _LEAST_SHARE * len(text)
    for period in range(1, min(_LONGEST_CYCLE, len(text) // _LEAST_CYCLES) + 1):
        length = period
        while length < len(text) and text[-1 - length] == text[period - 1 - length]:
            length += 1
        if length >= max(_LEAST_CYCLES * period, least, _GRAM):
            return True
    return False


def _repeated_share(text: Sequence[int]) -> float:
    grams = [tuple(text[start : start + _GRAM]) for start in range(len(text) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
