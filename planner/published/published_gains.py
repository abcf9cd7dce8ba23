"""How predictions compare with published speed-ups that were predicted before anybody had looked at them."""

from math import inf
from typing import Final, NamedTuple


class Promised(NamedTuple):
    """Published speed-ups that were predicted from `low` to `high`: their number, and how many were above 1."""

    low: float
    high: float
    num: int
    num_gains: int


PROMISED: Final = (Promised(0, 1, 18, 4), Promised(1, 1.4, 55, 35), Promised(1.4, inf, 152, 136))
ACCURACY: Final = (
    "225 published speed-ups of speculation, predicted before anybody looked at them: median error 23 %, nine of ten "
    "within a factor of 2.0; median error 20 % with heads of the target, 33 % with other drafters; "
    "16 % where the source gives acceptance, 30 % where it is assumed"
)
"""Both are from benchmarks/results/retrodictions.json: `blind`, `blind again` and `blind, third`."""
ENGINE_ERROR: Final = 0.35
"""Error (half-width, of the logarithm) that engines add to a predicted speed-up above 1. With it, a plan says yes from
about 1.4 on, where nine of ten published speed-ups were gains. Speed-ups below 1 need no such error: no engine was
faster than plain decoding where a plan's numbers rule it out."""


def published_like(gain: float, which: str = "") -> str:
    """Return a sentence on how many published speed-ups with a similar prediction were gains.

    `which` begins with a comma and says what the prediction is of.
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
