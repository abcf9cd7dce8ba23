"""What predictions of this kind were worth where they were held against public measurements."""

from typing import Final

WORTH: Final = (
    "gains by speculation that others published: 14 % off in the median of 44, and inside their intervals in 82 %; "
    "nobody had looked at these when they were predicted (blind)"
)
"""Of benchmarks/results/retrodictions.json: the blind column."""
