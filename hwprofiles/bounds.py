"""What a number of a profile may plausibly be: whatever lies outside, or is not finite, is refused when it is read.

Wide enough for every machine there is, and narrow enough that no prediction comes to infinity.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

MOST_RELATIVE_ERROR: Final = 100.0
"""Whoever is off by more knows nothing."""

LONGEST_S: Final = 3600.0
"""No operation takes more than an hour."""

MOST_SLOWDOWN: Final = 1000.0
"""No two lanes slow each other more."""

Seconds = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]
"""A latency."""

RelativeError = Annotated[float, Field(ge=0, le=MOST_RELATIVE_ERROR, allow_inf_nan=False)]

Bytes = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]

BytesPerSecond = Annotated[float, Field(ge=1, le=1e18, allow_inf_nan=False)]

Factor = Annotated[float, Field(ge=0.01, le=MOST_SLOWDOWN, allow_inf_nan=False)]
"""A time over another time of the same work."""

Count = Annotated[int, Field(ge=0, le=10**9)]
"""Rows, or tokens in a cache."""
