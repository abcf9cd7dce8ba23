"""The numbers of KV slots that compiled and captured passes have, since each number is compiled, or captured, anew.

Attention runs over empty slots too: a compiled pass of a 135M target takes 1.6 times as long over 2,048 slots as over
256, and 2.4 times over 4,096 (benchmarks/results/contexts.json). So sizes are few, but no further apart than they must.
"""

from __future__ import annotations

from typing import Final

_LEAST: Final = 256
"""So many that short sequences never change their size."""


def slot_size(num_slots: int, *, has_halves: bool) -> int:
    """Return the least size that holds so many: 256, 512, 1024 and so on, and with halves 384, 768, 1536 too."""
    size = _LEAST
    while size < num_slots:
        size *= 2
    half = 3 * size // 4
    return half if has_halves and _LEAST < num_slots <= half else size


def slot_sizes(num_slots: int, *, has_halves: bool) -> tuple[int, ...]:
    """Return all sizes that a sequence passes through until it has so many slots."""
    sizes = [_LEAST]
    while sizes[-1] < num_slots:
        sizes.append(slot_size(sizes[-1] + 1, has_halves=has_halves))
    return tuple(sizes)
