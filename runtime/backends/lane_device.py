"""The device of a lane, and all its properties that follow from the lane's name.

- cpu0, cpu0+1, any name without a colon   the CPU's cores by torch
- openvino:CPU, openvino:CPU@0             all cores, or those of the lane cpu0, by compiled models
- openvino:GPU, openvino:NPU               other devices of OpenVINO
- cuda:0, cuda:0#2                         a GPU by captured graphs; a second lane (process) of it
- cuda:0-2ranks                            cuda:0 and cuda:1, which share one target
"""

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from decoding.errors import ConfigError

Dtype = Literal["bfloat16", "float32", "int8", "int4"]
"""Weight format; with int8 and int4 weights, arithmetic is in the device's 16-bit type."""
EAGER: Final = "cpu"
"""The device of lanes whose names have no colon."""
COMPILED_ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures that OpenVINO computes (`runtime.backends.openvino.graph`)."""
NPU_ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of rows of an NPU's compiled models; a call costs as much as the next larger size."""
NPU_POSITIONS: Final = 4096
"""Most KV positions of an NPU's compiled model, one of them spare; a limit of ours, as each doubling is compiled."""
CAPTURED_ROWS: Final = (8, 16, 32, 64, 128)
"""Numbers of rows of captured calls of one sequence; 8 rows take as long as 1 while reading weights dominates."""
PREFILL_ROWS: Final = 512
"""Prompt rows per pass: enough to be compute-bound, few enough to need little memory."""
INT4_GROUP: Final = 64
"""Inputs that share a scale in int4; if the number of inputs is not a multiple of it, a row has one scale."""
_LEAST_SLOTS: Final = 256
"""KV slots of the smallest size, enough for short sequences."""
_TREE_NODES: Final = 32
"""Nodes of the largest trees in default searches."""
NPU_ON_CPU: Final = "MIRRORSD_NPU_ON_CPU"
"""Environment variable that runs the NPU's path on the CPU, to test what it computes, not how fast."""

_LANE: Final = re.compile(r"(openvino:[A-Z]+(?:\.\d+)?|cuda:\d+)(?:[@#]\d+(?:\+\d+)*)?(?:-\d{1,3}ranks?)?")
_RANKS: Final = re.compile(r"-(\d{1,3})ranks?$")
_TOO_MANY_RANKS: Final = re.compile(r"-\d{4,}ranks?$")


def ranks_of(lane: str) -> int:
    """Return the number of processes over which a lane's target is split, from the lane's name."""
    found = _RANKS.search(lane)
    return int(found[1]) if found else 1


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its name (`cpu`, `openvino:GPU.1`, `cuda:0`), the library that computes on it, and its name there."""

    name: str
    library: Literal["torch", "openvino", "cuda"]
    own_name: str

    @classmethod
    def of_lane(cls, lane: str) -> "Device":
        """Return the device in a lane's name; raise `ConfigError` for an unknown device, or 1,000 ranks or more."""
        if ":" not in lane and _TOO_MANY_RANKS.search(lane) is None:
            return CORES
        if (found := _LANE.fullmatch(lane)) is None:
            raise ConfigError(
                f"lane {lane!r} names no device; names are such as cpu0, openvino:CPU, openvino:CPU@0, openvino:NPU, "
                "cuda:0, cpu0-2ranks"
            )
        name, own_name = found[1], found[1].partition(":")[2]
        return cls(name, "cuda", name) if name.startswith("cuda:") else cls(name, "openvino", own_name)

    @property
    def backend(self) -> str:
        """The back end's name in acceptance records: `torch`, `openvino:CPU`, `cuda`; the same for devices of a kind.

        Back end and weight format decide which token wins a near tie.
        """
        return self.name.partition(".")[0] if self.is_compiled else self.library

    @property
    def is_compiled(self) -> bool:
        """Whether OpenVINO computes, so that the lane needs no torch."""
        return self.library == "openvino"

    @property
    def prepares(self) -> bool:
        """Whether a lane compiles or captures something before a sequence."""
        return self.library != "torch"

    @property
    def has_readable_cache(self) -> bool:
        """Whether torch modules may read the KV cache, as streams do.

        On other back ends a draft of four layers would gain nothing by streams (benchmarks/results/draft-streams.json).
        """
        return self.library == "torch"

    @property
    def has_dynamic_shapes(self) -> bool:
        """Whether one compiled model serves any number of sequences, rows and KV positions."""
        return self.backend == "openvino:CPU"

    @property
    def kind(self) -> Literal["cpu", "gpu", "npu"]:
        """The kind of device."""
        if self.library == "cuda":
            return "gpu"
        kinds: dict[str, Literal["gpu", "npu"]] = {"openvino:GPU": "gpu", "openvino:NPU": "npu"}
        return kinds.get(self.backend, "cpu")

    @property
    def is_npu(self) -> bool:
        """Whether it is an NPU, whose compiled models have few sizes and whose compiler may crash."""
        return self.kind == "npu"

    def knows(self, architecture: str) -> bool:
        """Return whether it supports an architecture, named as in Hugging Face configurations; torch supports all."""
        return not self.is_compiled or architecture in COMPILED_ARCHITECTURES

    def timed_rows(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of rows to time in place of `rows`: on an NPU both ends of every compiled size."""
        if not self.is_npu:
            return rows
        last = min(rows[-1], NPU_ROWS[-1])
        edges = {count for size in NPU_ROWS for count in (size, size + 1)}
        return (*sorted(count for count in edges if count < last), last)

    def num_slots(self, num_positions: int) -> int:
        """Return the number of KV slots over which attention runs, empty ones included."""
        return self.slot_sizes(num_positions)[-1] if self.prepares else num_positions

    def slot_sizes(self, num_positions: int) -> tuple[int, ...]:
        """Return all numbers of slots that a sequence goes through until it has `num_positions`.

        For each of them calls are compiled or captured: 256, 512, 1024 and so on, on some devices also 384, 768, 1536.
        Attention runs over empty slots too: a compiled pass of a 135M target takes 1.6 times as long over 2,048 as over
        256 slots, and 2.0 times as long over 3,072 (benchmarks/results/held-out/2026-11-29-7989fd00.yaml).
        """
        # on these devices a further size costs little, on others it takes seconds to compile
        has_halves = self.has_dynamic_shapes or self.library == "cuda"
        first = (_LEAST_SLOTS, _LEAST_SLOTS * 3 // 2) if has_halves else (_LEAST_SLOTS,)
        return _doubled(first, num_positions + self.spare_slots)

    def reserved_slots(self, num_positions: int) -> int:
        """Return the number of KV slots to allocate; on a GPU memory doubles when it grows.

        All calls are then captured again, which takes a second.
        """
        wanted = self.num_slots(num_positions)
        return 1 << (wanted - 1).bit_length() if self.library == "cuda" else wanted

    @property
    def spare_slots(self) -> int:
        """Slots after that of a row: for padding rows of its call, and on CPUs for other nodes of its tree."""
        if self.library == "cuda":
            return CAPTURED_ROWS[-1]
        return 1 + (_TREE_NODES if self.has_dynamic_shapes else 0)

    def of_rank(self, rank: int) -> "Device":
        """Return the device of a rank of a group that begins on this one: the rank-th next GPU, or the same cores."""
        if self.library != "cuda":
            return self
        return Device.of_lane(f"cuda:{int(self.name.removeprefix('cuda:')) + rank}")


@lru_cache(maxsize=4096)
def _doubled(first: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    """Return the sizes `first` and their doublings, ascending, up to the first that is at least `wanted`."""
    sizes = [size << doublings for doublings in range(wanted.bit_length()) for size in first]
    return tuple(size for size, below in zip(sizes, (0, *sizes), strict=False) if below < wanted)


CORES: Final = Device(EAGER, "torch", EAGER)
"""The CPU's cores by torch."""


def npu_is_on_cpu() -> bool:
    """Return whether the environment makes the CPU compute for `openvino:NPU`."""
    return os.environ.get(NPU_ON_CPU, "") not in ("", "0")
