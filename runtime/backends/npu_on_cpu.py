"""The switch that lets the NPU's path run where there is no NPU, for tests: it proves the path, not its speed."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "MIRRORSD_NPU_ON_CPU"


def is_on() -> bool:
    """Whether `openvino:NPU` is the CPU, by the environment."""
    return os.environ.get(VARIABLE, "") not in ("", "0")
