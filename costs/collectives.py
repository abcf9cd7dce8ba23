"""Closed forms of what a group of devices does together, over links of equal latency and bandwidth.

`num_bytes` is what every device holds in the end. Sources: Thakur, Rabenseifner and Gropp, Optimization of Collective
Communication Operations in MPICH (2005); the ring is that of NCCL.
"""

from __future__ import annotations

from typing import Literal

Algorithm = Literal["ring", "tree"]


def all_reduce_s(
    num_bytes: float, num_devices: int, *, latency_s: float, bytes_per_s: float, algorithm: Algorithm = "ring"
) -> float:
    """Everybody gets the sum of what all hold.

    Ring: a reduce-scatter and an all-gather, each of n - 1 steps with an n-th of the bytes. Tree: sums go up a binomial
    tree and the result comes down again, all bytes on every level.
    """
    if algorithm == "tree":
        return 2 * num_levels(num_devices) * (latency_s + num_bytes / bytes_per_s)
    steps = 2 * (num_devices - 1)
    return steps * (latency_s + num_bytes / num_devices / bytes_per_s)


def all_gather_s(num_bytes: float, num_devices: int, *, latency_s: float, bytes_per_s: float) -> float:
    """Everybody gets the shares of all: what is held doubles from step to step (Bruck, any number of devices)."""
    return num_levels(num_devices) * latency_s + (num_devices - 1) / num_devices * num_bytes / bytes_per_s


def num_levels(num_devices: int) -> int:
    """Levels of a binary tree of so many devices below its root: ceil(log2)."""
    return (num_devices - 1).bit_length()
