"""Plausible ranges of numbers in a profile: whatever lies outside, or is not finite, is refused when it is read.

They hold every machine there is, and keep predictions finite.
"""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

MOST_RELATIVE_ERROR: Final = 100.0
LONGEST_S: Final = 3600.0
"""No operation takes longer."""
SHORTEST_S: Final = 1e-18
"""A shorter time counts as none: as a divisor it would make speeds infinite."""
MOST_SLOWDOWN: Final = 1000.0
MOST_IN_A_TABLE: Final = 1e6
"""Longest over shortest time of one part, zeros left out."""


def _no_truth(value: Any) -> Any:
    """Refuse YAML's `true`, which counts as 1."""
    if isinstance(value, bool):
        raise ValueError("no number")  # noqa: TRY004  what pydantic turns into a mistake of the file
    return value


def _none_or_some(seconds: float) -> float:
    if 0 < seconds < SHORTEST_S:
        raise ValueError(f"no operation takes so little: 0, or {SHORTEST_S:g} at least")
    return seconds


_NUMBER: Final = BeforeValidator(_no_truth)
Seconds = Annotated[float, _NUMBER, Field(ge=0, le=LONGEST_S, allow_inf_nan=False), AfterValidator(_none_or_some)]
RelativeError = Annotated[float, _NUMBER, Field(ge=0, le=MOST_RELATIVE_ERROR, allow_inf_nan=False)]
Bytes = Annotated[float, _NUMBER, Field(ge=0, le=1e15, allow_inf_nan=False)]
BytesPerSecond = Annotated[float, _NUMBER, Field(ge=1, le=1e18, allow_inf_nan=False)]
Factor = Annotated[float, _NUMBER, Field(ge=0.01, le=MOST_SLOWDOWN, allow_inf_nan=False)]
"""A time over another time of the same work."""
Count = Annotated[int, _NUMBER, Field(ge=0, le=10**9)]
