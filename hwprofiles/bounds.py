"""Plausible ranges of the numbers in a profile: a number outside its range is refused when the profile is read.

Every existing machine lies inside the ranges, and they keep predictions finite. Use the types in a `StrictModel`, which
already refuses infinities, NaN and YAML's `true`.
"""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

MOST_RELATIVE_ERROR: Final = 100.0
LONGEST_S: Final = 3600.0
"""No operation takes longer."""
SHORTEST_S: Final = 1e-18
"""Shorter times, except 0, are refused: speeds (1 / time) would overflow."""
MOST_SLOWDOWN: Final = 1000.0
MOST_IN_A_TABLE: Final = 1e6
"""Largest ratio of the longest to the shortest non-zero time in one table."""


def _none_or_some(seconds: float) -> float:
    if 0 < seconds < SHORTEST_S:
        raise ValueError(f"no operation takes so little: 0, or {SHORTEST_S:g} at least")
    return seconds


Seconds = Annotated[float, Field(ge=0, le=LONGEST_S), AfterValidator(_none_or_some)]
RelativeError = Annotated[float, Field(ge=0, le=MOST_RELATIVE_ERROR)]
Bytes = Annotated[float, Field(ge=0, le=1e15)]
BytesPerSecond = Annotated[float, Field(ge=1, le=1e18)]
Factor = Annotated[float, Field(ge=0.01, le=MOST_SLOWDOWN)]
"""The ratio of two times of the same work."""
Count = Annotated[int, Field(ge=0, le=10**9)]
