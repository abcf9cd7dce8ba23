"""What is known of an NPU before anything is imported: the sizes of its graphs, and how tests do without one."""

from __future__ import annotations

import os
from typing import Final

ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Rows that graphs have: a step costs what the next of these does."""
SLOTS: Final = 4096
"""Slots that a graph has at most, one of which is spare. Ours, not a device's: every doubling is compiled anew."""
ON_CPU: Final = "MIRRORSD_NPU_ON_CPU"
"""The variable that lets the NPU's path run on the CPU, for tests: it shows what is written, not how fast."""


def is_on_cpu() -> bool:
    """Whether `openvino:NPU` is the CPU, by the environment."""
    return os.environ.get(ON_CPU, "") not in ("", "0")


def stair(last: int) -> tuple[int, ...]:
    """Rows from 1 to `last` that tell what all between them cost: both edges of every graph's."""
    edges = {count for size in ROWS for count in (size, size + 1)}
    last = min(last, ROWS[-1])
    return (*sorted(count for count in edges if count < last), last)
