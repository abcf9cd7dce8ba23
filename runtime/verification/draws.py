"""Random numbers by place instead of by order: the draw of a text position is the same however it is reached.

A schedule decides how often and in which order positions are verified; draws that depended on that order would
make the text depend on the schedule. Each use has its own stream, so no draw is used for two decisions.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

Stream = Literal["target", "accept", "draft"]
"""What is decided: the target's own token, whether a drafted token is accepted, the draft's token."""

_BITS = 53
"""A float64 holds this many bits of a number below one."""


def uniform(seed: int, stream: Stream, *place: int) -> float:
    """The draw in [0, 1) that belongs to a place: a hash of it, uniform in its top 53 bits.

    A place is a text position and, where several drafted tokens compete for the position, the rank of
    one among them.
    """
    digest = blake2b(" ".join(map(str, (seed, stream, *place))).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _BITS)) * 2.0**-_BITS
