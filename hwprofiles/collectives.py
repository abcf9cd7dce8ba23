"""Closed forms of collectives over equal links: what a group of devices takes to agree on one tensor.

One step sends a message over one link in each member's direction of travel: latency, and bytes over bandwidth. The
simulator's collective plays the same steps over links that may be busy; on free ones it takes as long as here.
"""

from __future__ import annotations

from math import ceil, inf, log2
from typing import Final, Literal

Algorithm = Literal["ring", "tree"]
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("ring", "tree")


def step_s(num_bytes: float, latency_s: float, bytes_per_s: float = inf) -> float:
    """One message over one link."""
    return latency_s + num_bytes / bytes_per_s


def ring_all_reduce_s(num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float = inf) -> float:
    """Every member ends with the sum of all: 2 (G - 1) steps of a G-th each, reduce-scatter and all-gather.

    Args:
        num_bytes: of the tensor, which every member holds.
        num_members: G; one alone has nothing to send.
        latency_s: of a link of the ring.
        bytes_per_s: of a link, in one direction.
    """
    return 2 * ring_all_gather_s(num_bytes, num_members, latency_s, bytes_per_s)


def ring_all_gather_s(num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float = inf) -> float:
    """Every member ends with all parts: G - 1 steps of a G-th of `num_bytes` each; arguments as above."""
    return (num_members - 1) * step_s(num_bytes / num_members, latency_s, bytes_per_s)


def tree_all_reduce_s(num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float = inf) -> float:
    """The sum goes up a binary tree and down again: 2 ceil(log2 G) steps of the whole tensor."""
    return 2 * ceil(log2(num_members)) * step_s(num_bytes, latency_s, bytes_per_s)


def tree_all_gather_s(num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float = inf) -> float:
    """Recursive doubling: ceil(log2 G) steps, each of twice the bytes of the one before, (G - 1) / G of all together.

    For a G that is no power of two the last step carries what is left.
    """
    steps = ceil(log2(num_members))
    return steps * latency_s + num_bytes * (num_members - 1) / num_members / bytes_per_s


def all_reduce_s(num_bytes: float, num_members: int, latency_s: float, bytes_per_s: float = inf) -> float:
    """The faster of ring and tree, as libraries choose by the size of the message."""
    arguments = (num_bytes, num_members, latency_s, bytes_per_s)
    return min(ring_all_reduce_s(*arguments), tree_all_reduce_s(*arguments))
