"""Limits the CPU's instructions to those by which a row has the same bits in any call.

Tiles of bfloat16 (AMX) sum a row in an order that depends on how many rows a call has, and graphs of int8 and int4 use
them too. So tiles are not used, in this process and in those that it starts, unless a user has said what oneDNN may
use; the self-test then says how exact a lane is (`runtime.backends.self_test`).
"""

import os
from collections.abc import Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Final

ISA_VARIABLE: Final = "ONEDNN_MAX_CPU_ISA"
"""Read by oneDNN, of which torch and OpenVINO each bring one, when it first computes."""
_WITHOUT_TILES: Final = "AVX512_CORE_BF16"
_WITHOUT_VNNI: Final = ("SSE41", "AVX", "AVX2", "AVX512_CORE")
_CPU_INFO: Final = Path("/proc/cpuinfo")
_CHANGING: Final = ("processor", "cpu mhz", "bogomips", "physical id", "core id", "apicid", "initial apicid")
"""Lines that differ from core to core, or from one start of the machine to the next."""
_KERNEL_VARIABLES: Final = ("ONEDNN_", "DNNL_")


def cap_instruction_set(environment: MutableMapping[str, str] = os.environ, cpu_info: Path | None = None) -> None:
    """Limit the instructions to those by which rows are alike, unless a user has chosen a limit."""
    try:
        has_tiles = "amx_tile" in (cpu_info or _CPU_INFO).read_text(encoding="utf-8")
    except OSError:
        return
    if has_tiles:
        environment.setdefault(ISA_VARIABLE, _WITHOUT_TILES)


def has_vnni(environment: Mapping[str, str] = os.environ, cpu_info: Path | None = None) -> bool:
    """Return whether this process may use the CPU's instructions for sums of products of integers.

    OpenVINO goes by what the CPU has, whatever oneDNN was told. Told that there are none, graphs of bfloat16 were
    refused, and those of int8 and int4 failed when they were run.
    """
    allowed = environment.get(ISA_VARIABLE, "")
    if allowed in _WITHOUT_VNNI:
        return False
    try:
        flags = (cpu_info or _CPU_INFO).read_text(encoding="utf-8").split()
    except OSError:
        return True
    has_any = "avx_vnni" in flags or ("avx512_vnni" in flags and not allowed.startswith("AVX2"))
    return has_any or "avx2" not in flags  # other makes of CPU are left to OpenVINO


def chosen_by(
    environment: Mapping[str, str] = os.environ, cpu_info: Path | None = None, *, cores: Collection[int] = ()
) -> list[str]:
    """Return what kernels are chosen by: all that the system says of some cores, and what oneDNN was told.

    Cores may differ on one machine; by default they are this process's. Empty where the system tells nothing.
    """
    try:
        listed = (cpu_info or _CPU_INFO).read_text(encoding="utf-8").strip().split("\n\n")
    except OSError:
        return []
    allowed = {str(number) for number in cores or os.sched_getaffinity(0)}  # wherever there is such a file
    own = [core.splitlines() for core in listed if core.partition("\n")[0].partition(":")[2].strip() in allowed]
    found = [line for core in own for line in core if line.partition(":")[0].strip().lower() not in _CHANGING]
    told = [f"{name}={environment[name]}" for name in sorted(environment) if name.startswith(_KERNEL_VARIABLES)]
    return [*dict.fromkeys(found), *told] if found else []


def described() -> str:
    """Return the limit that oneDNN was given, in words; empty for none."""
    chosen = os.environ.get(ISA_VARIABLE, "")
    return f"instructions up to {chosen}" if chosen else ""
