"""Plausible ranges of numbers in a profile: whatever lies outside is refused when it is read.

They hold every machine there is, and keep predictions finite. They are for fields of a `StrictModel`, which by itself
refuses what is not finite, and YAML's `true`.
"""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

MOST_RELATIVE_ERROR: Final = 100.0
LONGEST_S: Final = 3600.0
"""No operation takes longer."""
SHORTEST_S: Final = 1e-18
"""A shorter time counts as none: as a divisor it would make speeds infinite."""
MOST_SLOWDOWN: Final = 1000.0
MOST_IN_A_TABLE: Final = 1e6
"""Longest over shortest time of one part, zeros left out."""


def _none_or_some(seconds: float) -> float:
    if 0 < seconds < SHORTEST_S:
        raise ValueError(f"no operation takes so little: 0, or {SHORTEST_S:g} at least")
    return seconds


Seconds = Annotated[float, Field(ge=0, le=LONGEST_S), AfterValidator(_none_or_some)]
RelativeError = Annotated[float, Field(ge=0, le=MOST_RELATIVE_ERROR)]
Bytes = Annotated[float, Field(ge=0, le=1e15)]
BytesPerSecond = Annotated[float, Field(ge=1, le=1e18)]
Factor = Annotated[float, Field(ge=0.01, le=MOST_SLOWDOWN)]
"""A time over another time of the same work."""
Count = Annotated[int, Field(ge=0, le=10**9)]
