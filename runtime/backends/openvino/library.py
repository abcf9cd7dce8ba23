"""OpenVINO, imported in one place and without its telemetry, which reports every import to its makers otherwise."""

import sys
from types import ModuleType
from typing import cast

_modules = cast("dict[str, ModuleType | None]", sys.modules)
# with nothing under this name, OpenVINO falls back to a stub of its own that sends nothing
_modules.setdefault("openvino_telemetry", None)

import openvino as ov  # noqa: E402
from openvino import Node  # noqa: E402
from openvino import opset13 as op  # noqa: E402

__all__ = ["Node", "new_core", "op", "ov"]
_cores: list[ov.Core] = []


def new_core() -> ov.Core:
    """Return an OpenVINO core that lives as long as the process.

    Each one's CPU plugin gives the thread a stack for its signals. If cores end in the order in which they began, the
    thread is left with a stack that is gone, and the next signal, such as that of Ctrl-C, is a segmentation fault.
    """
    _cores.append(core := ov.Core())
    return core
