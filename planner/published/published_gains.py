"""Published gains of speculation, which were predicted before anybody had looked at them."""

from math import inf
from typing import Final, NamedTuple


class Promised(NamedTuple):
    """Published gains that were predicted at `low` times plain decoding or more, and below `high`."""

    low: float
    high: float
    num: int
    num_gains: int


PROMISED: Final = (Promised(0, 1, 18, 4), Promised(1, 1.4, 55, 35), Promised(1.4, inf, 152, 136))
ACCURACY: Final = (
    "225 published gains of speculation, predicted before anybody looked at them: 23 % off in the median, nine of ten "
    "within a factor of 2.0; with heads of the target 20 % off, with other drafters 33 %"
)
"""Both of benchmarks/results/retrodictions.json: `blind`, `blind again` and `blind, third`."""
ENGINE_ERROR: Final = 0.35
"""Half-width of the error that engines add to a gain's logarithm: with it a plan says yes from 1.4 times on, where nine
of ten published speed-ups were gains. A loss needs none: no engine won where a plan's numbers rule it out."""


def published_like(gain: float, which: str = "") -> str:
    """Return how many of the published speed-ups that were predicted like this one were gains, as a sentence.

    `which` says of what it is, behind a comma.
    """
    found = next(one for one in PROMISED if one.low <= gain < one.high)
    promised = f"at {found.low:g} to {found.high:g} times plain decoding"
    if not found.low:
        promised = "below plain decoding"
    elif found.high == inf:
        promised = f"at {found.low:g} times plain decoding or more"
    return (
        f"Of {found.num} published speed-ups predicted {promised}{which}, {found.num_gains} beat plain decoding: "
        "measure before you buy."
    )
