"""Imports OpenVINO without its telemetry, which would report every import to its makers."""

import sys
from types import ModuleType
from typing import cast

_modules = cast("dict[str, ModuleType | None]", sys.modules)
# without this module, OpenVINO uses a stub that sends nothing
_modules.setdefault("openvino_telemetry", None)

import openvino as ov  # noqa: E402
from openvino import Node  # noqa: E402
from openvino import opset13 as op  # noqa: E402

from runtime.instruction_set import without_our_limit  # noqa: E402

__all__ = ["Node", "new_core", "op", "ov"]
_cores: list[ov.Core] = []


def new_core() -> ov.Core:
    """Return an OpenVINO core that lives as long as the process.

    The CPU plugin of each core sets a stack for the thread's signal handlers. If cores are destroyed in the order of
    their creation, the thread keeps a stack that was freed, and the next signal, such as Ctrl-C, crashes the process.
    """
    with without_our_limit():
        _cores.append(core := ov.Core())
        core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")  # for which OpenVINO reads the limit
    return core
