"""KV caches in torch: of a sequence, which appends at a cursor, and of branches.

A slot is a row of the cache's memory; a position is a place in the text, which the caller passes to the decoder.
Shapes: legend of `runtime.models.decoder`; L layers, S slots, R branches, T rows of each branch.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.errors import LaneError
from runtime.backends.kv_memory import BranchCaches, SequenceCache
from runtime.models.config import ModelConfig
from runtime.models.decoder import causal_mask
from runtime.models.row_invariance import (
    KEYS_AT_ONCE,
    LayerKeys,
    RowPiece,
    Sight,
    keys_seen,
    mask_for_groups,
    with_all_keys,
)


class TorchMemory:
    """Implements `runtime.backends.kv_memory.Memory` by one tensor, which grows to the longest sequence so far."""

    spare = 0
    """Slots after those of a sequence, for back ends that need them."""

    def __init__(self, config: ModelConfig, num_texts: int, dtype: torch.dtype, device: str | torch.device) -> None:
        shape = (config.num_layers, 2, num_texts, config.num_kv_heads, 0, config.head_dim)
        self.slots = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def num_slots(self) -> int:
        """Slots that a sequence can have, without spare ones."""
        return max(0, self.slots.shape[4] - self.spare)

    def start(self, num_slots: int) -> None:
        """See `Memory`."""
        self.allocate(num_slots)
        self.clear()

    @torch.inference_mode()
    def start_random(self, num_slots: int) -> None:
        """See `Memory`."""
        self.allocate(num_slots)
        vector_H = torch.randn(self.slots.shape[-1], generator=torch.Generator().manual_seed(0))
        self.slots.copy_(vector_H.to(self.slots))

    def reserve(self, num_slots: int, *, num_kept: int = 0) -> None:  # noqa: ARG002  all slots are kept
        """Raise `LaneError` for a sequence that needs more KV positions than were allocated."""
        if not 0 <= num_slots <= self.num_slots:
            raise LaneError(f"a sequence needs {num_slots} KV positions, and {self.num_slots} were reserved for it")

    def allocate(self, num_slots: int) -> None:
        """Make room for `num_slots` slots per sequence; growing clears all slots."""
        if num_slots > self.num_slots:
            before = self.slots = self.slots[..., :0, :].clone()  # frees the old memory before more is allocated
            shape = (*before.shape[:4], self._size(num_slots), before.shape[5])
            self.slots = torch.empty(shape, dtype=before.dtype, device=before.device)
            self.clear()

    @torch.inference_mode()
    def clear(self) -> None:
        """Write zeros: a masked slot has weight zero, but zero times NaN would be NaN."""
        self.slots.zero_()

    def _size(self, num_slots: int) -> int:
        return num_slots + -num_slots % KEYS_AT_ONCE


class KVCache(SequenceCache, LayerKeys):
    """The KV cache of one sequence, for all layers."""

    memory: TorchMemory

    def __init__(self, config: ModelConfig, capacity: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__(TorchMemory(config, 1, dtype, device))
        self.memory.allocate(capacity)
        self._text_order = torch.zeros(0, 0)

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:
        """Return what the next rows see, by an additive mask [.., T, cursor + T]; None means causal.

        A row sees no slot after its own, so its slot alone determines over how many keys it is computed (`keys_seen`).
        """
        pieces, start = list[RowPiece](), 0
        while start < num_rows:
            num_keys = keys_seen(self.cursor + start)
            stop = min(num_keys - self.cursor, num_rows)
            part = self._in_text_order(start, stop, num_keys) if mask is None else mask[..., start:stop, :]
            part = mask_for_groups(with_all_keys(part, num_keys), num_queries_per_kv)
            pieces.append(RowPiece(slice(start, stop), num_keys, part))
            start = stop
        return tuple(pieces)

    def _in_text_order(self, start: int, stop: int, num_keys: int) -> Tensor:
        """Return the causal mask [stop - start, num_keys] of some of the next rows, a slice of a table made once."""
        slots, capacity = self.memory.slots, self.memory.num_slots
        if self._text_order.shape[-1] != capacity:
            table = causal_mask(KEYS_AT_ONCE, slots.dtype, context=capacity - KEYS_AT_ONCE)
            self._text_order = table.to(slots.device)
        first = self.cursor - (num_keys - KEYS_AT_ONCE)
        return self._text_order[first + start : first + stop, capacity - num_keys :]

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows of this call at the cursor without moving it; return all slots, [B, K, S, H] each."""
        slots, num_rows = self.memory.slots, k_BKTH.shape[2]
        keys, values = slots[layer, 0], slots[layer, 1]
        keys.narrow(2, self.cursor, num_rows).copy_(k_BKTH)
        values.narrow(2, self.cursor, num_rows).copy_(v_BKTH)
        return keys, values


class BranchCache(BranchCaches):
    """The KV caches of branches, in torch."""

    memory: TorchMemory

    def __init__(self, config: ModelConfig, num_branches: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__(TorchMemory(config, num_branches, dtype, device), num_branches)

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> "BranchRowKeys":
        """Return the keys for the next rows of some branches, at these positions."""
        return BranchRowKeys(self.memory.slots[:, :, branches], positions_RT)


class BranchRowKeys(LayerKeys):
    """Keys for one call over rows of several branches; each row sees its branch up to itself (`keys_seen`)."""

    def __init__(self, slots_L2RKSH: Tensor, positions_RT: Sequence[Sequence[int]]) -> None:
        self._slots, device = slots_L2RKSH, slots_L2RKSH.device
        self.positions_RT = torch.tensor(positions_RT, device=device)
        self._branches_R1 = torch.arange(len(positions_RT), device=device)[:, None]
        counts = [[keys_seen(position) for position in positions] for positions in positions_RT]
        self._num_keys_RT = torch.tensor(counts, device=device)
        self._sizes = sorted({count for row in counts for count in row})

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows at their positions; return all slots of their branches."""
        keys, values = self._slots[layer, 0], self._slots[layer, 1]
        keys[self._branches_R1, :, self.positions_RT] = k_BKTH.transpose(1, 2)
        values[self._branches_R1, :, self.positions_RT] = v_BKTH.transpose(1, 2)
        return keys, values

    def attend(self, layer: int, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, sight: Sight) -> Tensor:
        """Write keys and values; return the output of attention [R, T, N * H], each row over its number of keys."""
        k_BKSH, v_BKSH = self.write(layer, k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2))
        seen = sight[0].attend(q_BTNH, k_BKSH, v_BKSH)
        for piece, size in zip(sight[1:], self._sizes[1:], strict=True):
            has_size = (self._num_keys_RT == size)[..., None]
            seen = torch.where(has_size, piece.attend(q_BTNH, k_BKSH, v_BKSH), seen)
        return seen

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """Return a piece with all rows for every number of keys that any row sees, mostly one or two."""
        slots_S = torch.arange(self._sizes[-1], device=self.positions_RT.device)
        hidden_RTS = slots_S > self.positions_RT[..., None]
        mask_RTS = self._slots.new_zeros(hidden_RTS.shape).masked_fill_(hidden_RTS, -math.inf)
        mask_for_all = mask_for_groups(mask_RTS[:, None], num_queries_per_kv)
        return tuple(RowPiece(slice(None), size, mask_for_all[..., :size]) for size in self._sizes)
