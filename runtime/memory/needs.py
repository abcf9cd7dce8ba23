"""Computes the memory that a schedule needs in each lane, before anything is loaded, and checks that it is available.

The formulas are of what lanes allocate for models of these shapes: weights, KV caches of the sequence and of each
branch, and the most that one pass needs. Weights that are memory-mapped count as if they were copied, except the
originals of int8 and int4 matrices, which are read one by one.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from threading import Lock
from typing import Final

from decoding.errors import MemoryFitError
from decoding.schedule import Schedule
from runtime.arrays import FLOAT32
from runtime.backends.lane_device import Device, Dtype, ranks_of
from runtime.backends.openvino.buckets import copies_bytes, limits_of
from runtime.drafters.registry import known_kind
from runtime.memory.model_bytes import (
    ITEM_BYTES,
    DraftSize,
    keys_values_bytes,
    matrices_bytes,
    trained_size,
    weight_bytes,
    working_bytes,
)
from runtime.models.config import ModelConfig, decoder_shapes, decoder_tensors

PROCESS_BYTES: Final = 150_000_000
"""Bytes of a lane's process with torch but no model: 147 MB of private memory, measured with torch 2.13 on Linux."""
COMPILED_PROCESS_BYTES: Final = 40_000_000
"""Bytes of a compiled lane's process without a model: 35 MB, measured likewise with OpenVINO 2026.4."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneNeed:
    """Bytes that a lane needs: weights, KV caches of the sequence and of branches, one pass, and the bare process."""

    weights: int = 0
    keys_values: int = 0
    branches: int = 0
    working: int = 0
    process: int = 0

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return sum(getattr(self, each.name) for each in fields(self))

    def __add__(self, other: "LaneNeed") -> "LaneNeed":
        """Return the sum of two needs in one lane."""
        return LaneNeed(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


def memory_needed(
    target: ModelConfig,
    schedule: Schedule,
    *,
    dtype: Dtype,
    num_tokens: int,
    draft: DraftSize | None = None,
    parts: Iterable[Path] = (),
) -> dict[str, LaneNeed]:
    """Return what a schedule needs, by lane, for `num_tokens` tokens of prompt and answer.

    `draft` is the size of the drafter, if any; `parts` are folders that are loaded with the target: exits and streams.
    """
    needs = _of_one_rank(target, schedule, dtype, num_tokens, draft)
    held = _Holding(schedule.target_lane, dtype).held
    trained = sum(trained_size(folder, target, held, True).weights for folder in parts)
    needs[schedule.target_lane] += LaneNeed(weights=trained)
    return {lane: on_ranks(need, ranks_of(lane), target, dtype) for lane, need in needs.items()}


def _of_one_rank(
    target: ModelConfig, schedule: Schedule, dtype: Dtype, num_tokens: int, draft: DraftSize | None
) -> dict[str, LaneNeed]:
    rows, lane = schedule.num_rows, _Holding(schedule.target_lane, dtype)
    needs = {
        schedule.target_lane: LaneNeed(
            weights=weight_bytes(target, lane.held) + lane.copies_bytes(target),
            keys_values=lane.keys_values_bytes(target, num_tokens + rows),
            working=working_bytes(target, rows, target.vocab_size, num_tokens, lane.computed),
            process=lane.process_bytes(draft if schedule.is_pooled else None),
        )
    }
    if draft is None or schedule.draft_lane is None:
        return needs
    lane = _Holding(schedule.draft_lane, dtype)
    branches = sum(schedule.draft_roots_per_row) + sum(schedule.exit_roots_per_row)
    if lane.device.is_compiled and not lane.device.has_dynamic_shapes:
        branches *= 2  # calls over some of them are padded
    keys_values = lane.keys_values_bytes(draft.layers, num_tokens + 2 * rows)
    draft_need = LaneNeed(
        weights=draft.weights * ITEM_BYTES[lane.held] // ITEM_BYTES[dtype] + lane.copies_bytes(draft.layers),
        keys_values=keys_values,
        branches=branches * keys_values,
        working=working_bytes(draft.layers, max(branches, 1), draft.num_outputs, num_tokens, lane.computed),
        process=0 if schedule.is_pooled else lane.process_bytes(draft),
    )
    return needs | {schedule.draft_lane: needs.get(schedule.draft_lane, LaneNeed()) + draft_need}


class _Holding:
    """How a lane holds models: the format of matrices (`held`), and the type of arithmetic and keys (`computed`)."""

    def __init__(self, lane: str, dtype: Dtype) -> None:
        self.device = Device.of_lane(lane)
        self._lacks_half = self.device.has_dynamic_shapes and limits_of(self.device).half == FLOAT32
        self.computed: Dtype = "float32" if self._lacks_half else dtype
        self.held: Dtype = dtype if dtype in ("int8", "int4") else self.computed

    def copies_bytes(self, config: ModelConfig) -> int:
        """Return the bytes of copies of compiled graphs with dynamic shapes.

        Without bfloat16, calls of 8 and more rows hold half of the quantised matrices again (measured with AVX2).
        """
        if not self.device.has_dynamic_shapes or not config.num_layers:
            return 0
        has_second = self.held in ("int8", "int4") and self._lacks_half
        second_layout = matrices_bytes(config, "int8") // 2 if has_second else 0
        return copies_bytes(matrices_bytes(config, self.held)) + second_layout

    def keys_values_bytes(self, config: ModelConfig, num_slots: int) -> int:
        """Return the bytes of the KV cache of a sequence; compiled lanes keep the buffers that it has outgrown."""
        sizes, reserved = self.device.slot_sizes(num_slots), self.device.reserved_slots(num_slots)
        held = sum(sizes) if self.device.is_compiled else reserved
        return keys_values_bytes(config, held, self.computed)

    def process_bytes(self, draft: DraftSize | None) -> int:
        needs_torch = not self.device.is_compiled or (draft is not None and draft.is_of_torch)
        return PROCESS_BYTES if needs_torch else COMPILED_PROCESS_BYTES


def on_ranks(need: LaneNeed, num_ranks: int, target: ModelConfig, dtype: Dtype) -> LaneNeed:
    """Return the need of a lane whose target is split over ranks, which divide only layers and KV caches."""
    tables = (1 if target.tie_embeddings else 2) * target.vocab_size * target.hidden_size * ITEM_BYTES[dtype]
    return need + LaneNeed(
        weights=(num_ranks - 1) * tables,
        working=(num_ranks - 1) * need.working,
        process=(num_ranks - 1) * need.process,
    )


def host_needed(target: ModelConfig, needs: Mapping[str, LaneNeed], dtype: Dtype) -> dict[str, LaneNeed]:
    """Return what lanes need of the host's memory; a GPU's memory is checked when it is allocated.

    For a GPU, weights are memory-mapped until they are copied to it, except float32 and concatenated ones.
    """
    shapes = decoder_shapes(target)
    joined = sum(prod(shapes[name]) for name, theirs in decoder_tensors(target).items() if len(theirs) > 1)
    copied = 0 if target.random_seed is not None else joined * ITEM_BYTES[dtype]

    def of_host(lane: str, need: LaneNeed) -> LaneNeed:
        if Device.of_lane(lane).library != "cuda":
            return need
        weights = need.weights if dtype == "float32" else min(need.weights, copied)
        return LaneNeed(weights=weights, process=need.process)

    return {lane: of_host(lane, need) for lane, need in needs.items()}


def draft_size(folder: Path, target: ModelConfig, dtype: Dtype, *, shares_lane: bool) -> DraftSize:
    """Return the size of a folder's drafter; raise `ModelError` if it cannot be read or is not supported."""
    kind = known_kind(folder)
    size = kind.size(folder, target, dtype, shares_lane)
    return replace(size, is_of_torch=kind.needs_torch)


_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class Room:
    """Checks that lanes fit into the memory of this machine; thread-safe. "Taken" bytes may not be allocated yet."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._lock = Lock()
        self._loading: set[str] = set()
        self._left: int | None = None
        """While lanes load: the bytes that were available at first, minus what these lanes have taken since."""

    @contextmanager
    def loading(self, lane: str, *, running: Collection[str]) -> Iterator[None]:
        """Mark a lane as loading during the body, so that others do not count on memory that it has yet to fill."""
        with self._lock:
            if not self._loading:
                self._left = None
            self._loading.add(lane)
            if lane not in running:
                self._taken.pop(lane, None)
        try:
            yield
        finally:
            with self._lock:
                self._loading.discard(lane)

    def take(self, needs: Mapping[str, LaneNeed], *, running: Collection[str], available: int | None = None) -> None:
        """Take what lanes need of `available` bytes (None: the machine's); raise `MemoryFitError` if that is too much.

        Lanes in `running` still hold what they took before, and only need the difference.
        """
        with self._lock:
            holding = self._loading.union(running)
            self._taken = {lane: taken for lane, taken in self._taken.items() if lane in holding}
            missing = sum(max(0, need.total - self._taken.get(lane, 0)) for lane, need in needs.items())
            if missing:
                if available is None:
                    available = self._left if self._loading and self._left is not None else available_bytes()
                if available is not None and missing > available:
                    lanes = "; ".join(f"lane {lane!r} {in_words(need)}" for lane, need in needs.items())
                    lack = f"{gigabytes(missing)} more memory needed, {gigabytes(available)} available"
                    raise MemoryFitError(f"{lack}. {lanes}. {_advice(needs)}")
                self._left = None if available is None else available - missing
            self._taken |= {lane: max(need.total, self._taken.get(lane, 0)) for lane, need in needs.items()}


def available_bytes() -> int | None:
    """Return the bytes that processes can still allocate, including droppable caches; None if unknown."""
    found = [num_bytes for num_bytes in (_of_the_machine(), _of_the_container()) if num_bytes is not None]
    return min(found, default=None)


def _of_the_machine() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _of_the_container() -> int | None:
    """Return the bytes within the limit of the control group, counting cached files as free; None without a limit."""
    try:
        most, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return most - used + int(cached["inactive_file"]) + int(cached["active_file"])
    except (OSError, KeyError, ValueError):
        return None


def _advice(needs: Mapping[str, LaneNeed]) -> str:
    parts = {
        "a smaller model, or bfloat16 if this is float32": sum(need.weights for need in needs.values()),
        "shorter prompts and texts": sum(need.keys_values for need in needs.values()),
        "fewer roots (exit_top_k, draft_top_k)": sum(need.branches for need in needs.values()),
        "shorter windows": sum(need.working for need in needs.values()),
    }
    return f"What helps most: {max(parts, key=lambda name: parts[name])}"


def in_words(need: LaneNeed) -> str:
    """Return a lane's need in words."""
    return (
        f"{gigabytes(need.total)} (weights {gigabytes(need.weights)}, keys and values {gigabytes(need.keys_values)}, "
        f"branches {gigabytes(need.branches)}, a pass {gigabytes(need.working)}, process {gigabytes(need.process)})"
    )


def gigabytes(num_bytes: int) -> str:
    """Return a number of bytes in words."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
