"""Which instructions of the CPU are used: those by which a row has the same bits in any company.

Tiles of bfloat16 (AMX) sum a row in an order that depends on how many rows a call has: in most shapes below 64 rows, in
some at any number. And graphs of int8 and int4 unfold their weights to bfloat16 for them, which costs memory and speed.
Without tiles rows are alike at multiples of 1 to 16, by shape. So tiles are left out, in this process and in those that
it starts, unless a user has said what oneDNN may use; how exact a lane is then, its self-test says
(`runtime.backends.self_test`).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

ISA_VARIABLE: Final = "ONEDNN_MAX_CPU_ISA"
"""Read by oneDNN, which torch and OpenVINO bring one of each, when it first computes."""
_WITHOUT_TILES: Final = "AVX512_CORE_BF16"


def cap_instruction_set(environment: MutableMapping[str, str] = os.environ, cpu_info: Path | None = None) -> None:
    """Leave out instructions by which rows are not alike, where a user has not chosen any."""
    try:
        has_tiles = "amx_tile" in (cpu_info or Path("/proc/cpuinfo")).read_text(encoding="utf-8")
    except OSError:
        return
    if has_tiles:
        environment.setdefault(ISA_VARIABLE, _WITHOUT_TILES)


def described() -> str:
    """What oneDNN was told to use, for people; empty if nothing."""
    chosen = os.environ.get(ISA_VARIABLE, "")
    return f"instructions up to {chosen}" if chosen else ""
