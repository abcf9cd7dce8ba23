"""What a number of a profile may plausibly be: whatever lies outside, or is not finite, is refused when it is read.

Wide enough for every machine there is, and narrow enough that no prediction comes to infinity.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field


def _no_truth(value: Any) -> Any:
    """Refuse YAML's `true`, which counts as 1."""
    if isinstance(value, bool):
        raise ValueError("no number")  # noqa: TRY004  what pydantic turns into a mistake of the file
    return value


_NUMBER: Final = BeforeValidator(_no_truth)

MOST_RELATIVE_ERROR: Final = 100.0
"""Whoever is off by more knows nothing."""

LONGEST_S: Final = 3600.0
"""No operation takes more than an hour."""

MOST_SLOWDOWN: Final = 1000.0
"""No two lanes slow each other more."""

MOST_IN_A_TABLE: Final = 1e6
"""The longest call of a part takes no more times as long as its shortest, but for what costs nothing."""

MOST_PACE_SPREAD: Final = 0.5
"""What differs by more from round to round is not one machine's."""

SHORTEST_S: Final = 1e-18
"""What takes less takes nothing: speeds, of which times are parts, would come to infinity."""


def _none_or_some(seconds: float) -> float:
    if 0 < seconds < SHORTEST_S:
        raise ValueError(f"no operation takes so little: 0, or {SHORTEST_S:g} at least")
    return seconds


Seconds = Annotated[float, _NUMBER, Field(ge=0, le=LONGEST_S, allow_inf_nan=False), AfterValidator(_none_or_some)]
"""A latency."""

RelativeError = Annotated[float, _NUMBER, Field(ge=0, le=MOST_RELATIVE_ERROR, allow_inf_nan=False)]

Bytes = Annotated[float, _NUMBER, Field(ge=0, le=1e15, allow_inf_nan=False)]

BytesPerSecond = Annotated[float, _NUMBER, Field(ge=1, le=1e18, allow_inf_nan=False)]

Factor = Annotated[float, _NUMBER, Field(ge=0.01, le=MOST_SLOWDOWN, allow_inf_nan=False)]
"""A time over another time of the same work."""

Count = Annotated[int, _NUMBER, Field(ge=0, le=10**9)]
"""Rows, or tokens in a cache."""

# What a data sheet may give: least and most, of the field's SI unit.
TIMES_S: Final = (1e-12, LONGEST_S)
BYTE_RATES: Final = (1.0, 1e18)
"""Bytes per second."""
OPERATION_RATES: Final = (1.0, 1e21)
"""Operations per second."""
CAPACITIES_BYTES: Final = (1.0, 1e15)
POWERS_W: Final = (1e-6, 1e6)
SHARES: Final = (1e-6, 1.0)
"""Of a peak that is reached."""
GROWTHS_PER_ROW: Final = (1e-6, 4.0)
"""From next to nothing to old kernels that read the weights again for each row."""
PRICES_USD: Final = (1e-6, 1e9)
COUNTS: Final = (1.0, 1e9)
TRANSFER_RATES: Final = (1e6, 1e12)
"""Transfers per second and pin of a memory."""
BUS_WIDTHS: Final = (1.0, 1e6)
"""Bits."""
WRITE_OFFS_S: Final = (LONGEST_S, 1e10)
