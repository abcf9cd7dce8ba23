"""A device that a lane computes on, and everything that follows from its name.

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
"""Form of weights; int8 and int4 are computed with in the device's type of 16 bits."""
EAGER: Final = "cpu"
"""The device of lanes whose names have no colon."""
COMPILED_ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures that OpenVINO computes (`runtime.backends.openvino.graph`)."""
NPU_ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Rows that compiled models of an NPU have: a step costs what the next larger size does."""
NPU_POSITIONS: Final = 4096
"""The most KV positions of an NPU's compiled model, one of them spare; a limit of ours: each doubling is compiled."""
CAPTURED_ROWS: Final = (8, 16, 32, 64, 128)
"""Rows of one sequence in a captured call: as long as weights bound a step, 8 rows cost what 1 does."""
_LEAST_SLOTS: Final = 256
"""KV slots of the smallest size, enough for short sequences."""
_TREE_NODES: Final = 32
"""Nodes of the largest trees that searches have unless asked for more."""
NPU_ON_CPU: Final = "MIRRORSD_NPU_ON_CPU"
"""The variable that lets the NPU's path run on the CPU, for tests: it shows what is written, not how fast."""

_LANE: Final = re.compile(r"(openvino:[A-Z]+(?:\.\d+)?|cuda:\d+)(?:[@#]\d+(?:\+\d+)*)?(?:-\d{1,3}ranks?)?")
_RANKS: Final = re.compile(r"-(\d{1,3})ranks?$")
_TOO_MANY_RANKS: Final = re.compile(r"-\d{4,}ranks?$")


def ranks_of(lane: str) -> int:
    """Return the number of processes that a lane's target is split over, by the lane's name."""
    found = _RANKS.search(lane)
    return int(found[1]) if found else 1


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its name (`cpu`, `openvino:GPU.1`, `cuda:0`), the library that computes there, and its name in that."""

    name: str
    library: Literal["torch", "openvino", "cuda"]
    own_name: str

    @classmethod
    def of_lane(cls, lane: str) -> "Device":
        """Return the device in a lane's name; raise `ConfigError` for a colon and no known device, or 1,000 ranks."""
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
        """What computes, as records name it: `torch`, `openvino:CPU`, `cuda`.

        With the weights' form it decides which token a near tie goes to. Devices of a kind count as one.
        """
        return self.name.partition(".")[0] if self.is_compiled else self.library

    @property
    def is_compiled(self) -> bool:
        """Whether models compiled by OpenVINO compute: such a lane needs no torch."""
        return self.library == "openvino"

    @property
    def prepares(self) -> bool:
        """Whether a lane has something to compile or capture before a sequence."""
        return self.library != "torch"

    @property
    def has_readable_cache(self) -> bool:
        """Whether torch modules may read the KV cache, as streams do.

        A draft of four layers would gain nothing by it elsewhere (benchmarks/results/draft-streams.json).
        """
        return self.library == "torch"

    @property
    def has_dynamic_shapes(self) -> bool:
        """Whether one compiled model serves any number of sequences, rows and KV positions."""
        return self.backend == "openvino:CPU"

    @property
    def kind(self) -> Literal["cpu", "gpu", "npu"]:
        """What it is."""
        if self.library == "cuda":
            return "gpu"
        kinds: dict[str, Literal["gpu", "npu"]] = {"openvino:GPU": "gpu", "openvino:NPU": "npu"}
        return kinds.get(self.backend, "cpu")

    @property
    def is_npu(self) -> bool:
        """Whether it is an NPU: its compiled models have few sizes, and its compiler may end its process."""
        return self.kind == "npu"

    def knows(self, architecture: str) -> bool:
        """Return whether it computes an architecture, named as in a Hugging Face configuration; torch does all."""
        return not self.is_compiled or architecture in COMPILED_ARCHITECTURES

    def timed_rows(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the row counts to time in place of `rows`: on an NPU both edges of every compiled size."""
        if not self.is_npu:
            return rows
        last = min(rows[-1], NPU_ROWS[-1])
        edges = {count for size in NPU_ROWS for count in (size, size + 1)}
        return (*sorted(count for count in edges if count < last), last)

    def num_slots(self, num_positions: int) -> int:
        """Return the KV slots (reserved positions, empty ones included) that attention runs over."""
        return self.slot_sizes(num_positions)[-1] if self.prepares else num_positions

    def slot_sizes(self, num_positions: int) -> tuple[int, ...]:
        """Return all numbers of slots that a sequence goes through until it has `num_positions`.

        Each is compiled, or captured: 256, 512, 1024 and so on, and with halves 384, 768, 1536 too. Attention runs over
        empty slots as well: a compiled pass of a 135M target takes 1.6 times as long over 2,048 as over 256, and 2.4
        times over 4,096 (benchmarks/results/contexts.json).
        """
        # another size costs little here; one that is compiled costs seconds
        has_halves = self.has_dynamic_shapes or self.library == "cuda"
        first = (_LEAST_SLOTS, _LEAST_SLOTS * 3 // 2) if has_halves else (_LEAST_SLOTS,)
        return _doubled(first, num_positions + self.spare_slots)

    def reserved_slots(self, num_positions: int) -> int:
        """Return the KV slots that memory is allocated for; on a GPU twice as many when it must grow.

        Calls are captured anew then, which takes a second.
        """
        wanted = self.num_slots(num_positions)
        return 1 << (wanted - 1).bit_length() if self.library == "cuda" else wanted

    @property
    def spare_slots(self) -> int:
        """Slots after a row's own, for padding rows of its call, and on CPUs for other nodes of its tree."""
        if self.library == "cuda":
            return CAPTURED_ROWS[-1]
        return 1 + (_TREE_NODES if self.has_dynamic_shapes else 0)

    def of_rank(self, rank: int) -> "Device":
        """Return the device of a rank whose group begins on this one: GPUs follow each other, cores are shared."""
        if self.library != "cuda":
            return self
        return Device.of_lane(f"cuda:{int(self.name.removeprefix('cuda:')) + rank}")


@lru_cache(maxsize=4096)
def _doubled(first: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    """Return the first sizes, doubled again and again, up to one that is large enough."""
    sizes = [size << doublings for doublings in range(wanted.bit_length()) for size in first]
    return tuple(size for size, below in zip(sizes, (0, *sizes), strict=False) if below < wanted)


CORES: Final = Device(EAGER, "torch", EAGER)
"""The CPU's cores by torch."""


def npu_is_on_cpu() -> bool:
    """Return whether the environment lets the CPU stand in for `openvino:NPU`."""
    return os.environ.get(NPU_ON_CPU, "") not in ("", "0")
