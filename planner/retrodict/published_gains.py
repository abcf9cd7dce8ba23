"""What engines made of drafting: published gains that were predicted before anybody had looked at them."""

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
"""Half-width of what engines make of a gain beyond a plan's numbers, of its logarithm: with it a plan says yes from 1.4
times on, where nine of ten of those were gains. A loss needs none: no engine won where a plan's numbers rule it out."""


def published_like(gain: float) -> str:
    """Say how many of the published gains that were predicted like this one were gains."""
    found = next(one for one in PROMISED if one.low <= gain < one.high)
    promised = f"at {found.low:g} to {found.high:g} times plain decoding"
    if not found.low:
        promised = "below plain decoding"
    elif found.high == inf:
        promised = f"at {found.low:g} times plain decoding or more"
    return (
        f"Of {found.num} published speed-ups that such numbers put {promised}, {found.num_gains} were faster than it: "
        "measure before you buy."
    )
