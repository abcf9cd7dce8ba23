"""OpenVINO, imported in one place and without its telemetry, which reports every import to its makers otherwise."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

_modules = cast("dict[str, ModuleType | None]", sys.modules)
# with nothing under this name, OpenVINO falls back to a stub of its own that sends nothing
_modules.setdefault("openvino_telemetry", None)

import openvino as ov  # noqa: E402
from openvino import Node  # noqa: E402
from openvino import opset13 as op  # noqa: E402

__all__ = ["Node", "op", "ov"]
