"""Limits the CPU's instruction set to instructions that compute a row with the same bits in any call.

With AMX tiles, torch sums a row of bfloat16 in an order that depends on the number of rows of the call. So torch does
not use them in this process and its children, unless a user has set the limit of oneDNN. OpenVINO uses them: it gives a
row the same bits in any call if the inputs fill whole tiles, as graphs see to. The self-test tells whether a lane is
exact (`runtime.backends.self_test`).
"""

import os
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ISA_VARIABLE: Final = "ONEDNN_MAX_CPU_ISA"
"""The environment variable that oneDNN, in torch and in OpenVINO, reads when it first computes."""
_OURS: Final = "MIRRORSD_LIMITS_TORCH"
"""Set where the limit is not a user's, and so for torch alone; children inherit both."""
_WITHOUT_TILES: Final = "AVX512_CORE_BF16"
_WITHOUT_VNNI: Final = ("SSE41", "AVX", "AVX2", "AVX512_CORE")
_CPU_INFO: Final = Path("/proc/cpuinfo")
_CHANGING: Final = ("processor", "cpu mhz", "bogomips", "physical id", "core id", "apicid", "initial apicid")
"""Fields of /proc/cpuinfo that differ between cores, or from one boot to the next."""
_KERNEL_VARIABLES: Final = ("ONEDNN_", "DNNL_")


def cap_instruction_set(environment: MutableMapping[str, str] = os.environ, cpu_info: Path | None = None) -> None:
    """Forbid torch AMX tiles on a CPU that has them, unless a user has set a limit."""
    if ISA_VARIABLE not in environment and "amx_tile" in _described_cores(cpu_info):
        environment.update({ISA_VARIABLE: _WITHOUT_TILES, _OURS: "1"})


@contextmanager
def without_our_limit(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Hide our limit from a library that reads its variable now, as each does once; a user's limit stays."""
    limit = environment.pop(ISA_VARIABLE, None) if _OURS in environment else None
    try:
        yield
    finally:
        if limit is not None:
            environment[ISA_VARIABLE] = limit


def has_vnni(environment: Mapping[str, str] = os.environ, cpu_info: Path | None = None) -> bool:
    """Return whether this process may use the CPU's VNNI instructions, for products of integers.

    OpenVINO looks only at the CPU, not at the limit of oneDNN. When VNNI was forbidden, OpenVINO refused graphs of
    bfloat16, and graphs of int8 and int4 failed when they ran.
    """
    allowed = environment.get(ISA_VARIABLE, "")
    if allowed in _WITHOUT_VNNI:
        return False
    flags = _described_cores(cpu_info).split()
    has_any = "avx_vnni" in flags or ("avx512_vnni" in flags and not allowed.startswith("AVX2"))
    return has_any or "avx2" not in flags  # on CPUs without AVX2 OpenVINO decides by itself


def chosen_by(
    environment: Mapping[str, str] = os.environ, cpu_info: Path | None = None, *, cores: Collection[int] = ()
) -> list[str]:
    """Return what decides which kernels run: the system's description of some cores, and oneDNN's settings.

    `cores` are by default those of this process, as the cores of a machine may differ. The list is empty if the system
    does not describe its cores.
    """
    sections = _described_cores(cpu_info).strip().split("\n\n")
    wanted = {str(number) for number in cores or os.sched_getaffinity(0)}
    lines = []
    for section in sections:
        number = section.partition("\n")[0].partition(":")[2].strip()  # the first line is "processor : 0"
        if number in wanted:
            lines += [line for line in section.splitlines() if line.partition(":")[0].strip().lower() not in _CHANGING]
    names = [name for name in sorted(environment) if name.startswith(_KERNEL_VARIABLES)]
    settings = [f"{name}={environment[name]}" for name in names if name != ISA_VARIABLE or _OURS not in environment]
    return [*dict.fromkeys(lines), *settings] if lines else []


def _described_cores(cpu_info: Path | None) -> str:
    """Return the system's description of all cores; empty if it has none."""
    try:
        return (cpu_info or _CPU_INFO).read_text(encoding="utf-8")
    except OSError:
        return ""


def described(*, of_torch: bool) -> str:
    """Return the limit of torch's or OpenVINO's instructions in words; empty without a limit."""
    chosen = os.environ.get(ISA_VARIABLE, "")
    return f"instructions up to {chosen}" if chosen and (of_torch or _OURS not in os.environ) else ""
