"""Keys and values in memory of torch: of a sequence, written at a cursor that is a number to move, and of branches.

Slots are rows of memory; positions are places in the text, which the caller passes to the decoder. Shapes: legend of
`runtime.models.decoder`, plus L layers, S slots, R branches, T rows of each.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.errors import LaneError
from runtime.backends.sequences import BranchCaches, Text
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
    """Implements `runtime.backends.sequences.Memory`: one tensor that has room for the longest sequences so far."""

    spare = 0
    """Slots after the last one that a sequence can have."""

    def __init__(self, config: ModelConfig, num_texts: int, dtype: torch.dtype, device: str | torch.device) -> None:
        shape = (config.num_layers, 2, num_texts, config.num_kv_heads, 0, config.head_dim)
        self.slots = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def num_slots(self) -> int:
        """Slots that a sequence can have, those not counted that are spare."""
        return max(0, self.slots.shape[4] - self.spare)

    def start(self, num_slots: int) -> None:
        """See `Memory`."""
        self.allocate(num_slots)
        self.clear()

    @torch.inference_mode()
    def start_random(self, num_slots: int) -> None:
        """See `Memory`."""
        self.allocate(num_slots)
        own = torch.randn(self.slots.shape[-1], generator=torch.Generator().manual_seed(0))
        self.slots.copy_(own.to(self.slots))

    def reserve(self, num_slots: int, *, num_kept: int = 0) -> None:  # noqa: ARG002  all are kept
        """Raise `LaneError` for a sequence that needs more KV positions than were allocated."""
        if not 0 <= num_slots <= self.num_slots:
            raise LaneError(f"a sequence needs {num_slots} KV positions, and {self.num_slots} were reserved for it")

    def allocate(self, num_slots: int) -> None:
        """Have so many slots for every sequence; what they held is lost if there were fewer."""
        if num_slots > self.num_slots:
            before = self.slots = self.slots[..., :0, :].clone()  # what there was is given back first
            shape = (*before.shape[:4], self._size(num_slots), before.shape[5])
            self.slots = torch.empty(shape, dtype=before.dtype, device=before.device)
            self.clear()

    @torch.inference_mode()
    def clear(self) -> None:
        """Write zeros: hidden slots have no share, but zero times what is no number is none."""
        self.slots.zero_()

    def _size(self, num_slots: int) -> int:
        return num_slots + -num_slots % KEYS_AT_ONCE


class KVCache(Text, LayerKeys):
    """Keys and values of one sequence for every layer."""

    memory: TorchMemory

    def __init__(self, config: ModelConfig, capacity: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__(TorchMemory(config, 1, dtype, device))
        self.memory.allocate(capacity)
        self._text_order = torch.zeros(0, 0)

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:
        """Return what the next rows see by a mask over the slots up to them [.., T, cursor + T]; None is causal.

        A row never sees a slot after its own, and that settles how many it is computed over (`keys_seen`).
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
        """Return the mask [stop - start, num_keys] of some next rows, from a table: making one is slow."""
        slots, capacity = self.memory.slots, self.memory.num_slots
        if self._text_order.shape[-1] != capacity:
            table = causal_mask(KEYS_AT_ONCE, slots.dtype, context=capacity - KEYS_AT_ONCE)
            self._text_order = table.to(slots.device)
        first = self.cursor - (num_keys - KEYS_AT_ONCE)
        return self._text_order[first + start : first + stop, capacity - num_keys :]

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows of this call at the cursor, which does not move; return all slots, [B, K, S, H] each."""
        slots, num_rows = self.memory.slots, k_BKTH.shape[2]
        keys, values = slots[layer, 0], slots[layer, 1]
        keys.narrow(2, self.cursor, num_rows).copy_(k_BKTH)
        values.narrow(2, self.cursor, num_rows).copy_(v_BKTH)
        return keys, values


class BranchCache(BranchCaches):
    """Branches whose rows torch computes."""

    memory: TorchMemory

    def __init__(self, config: ModelConfig, num_branches: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__(TorchMemory(config, num_branches, dtype, device), num_branches)

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> "BranchRowKeys":
        """Return where the next rows of some branches go: at these positions."""
        return BranchRowKeys(self.memory.slots[:, :, branches], positions_RT)


class BranchRowKeys(LayerKeys):
    """Rows of branches in one call; each sees its branch up to itself, over as many keys as its slot settles."""

    def __init__(self, slots_L2RKSH: Tensor, positions_RT: Sequence[Sequence[int]]) -> None:
        self._slots, device = slots_L2RKSH, slots_L2RKSH.device
        self.positions_RT = torch.tensor(positions_RT, device=device)
        self._branches_R1 = torch.arange(len(positions_RT), device=device)[:, None]
        counts = [[keys_seen(position) for position in positions] for positions in positions_RT]
        self._num_keys_RT = torch.tensor(counts, device=device)
        self._sizes = sorted({count for row in counts for count in row})

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows at their places; return all slots of their branches."""
        keys, values = self._slots[layer, 0], self._slots[layer, 1]
        keys[self._branches_R1, :, self.positions_RT] = k_BKTH.transpose(1, 2)
        values[self._branches_R1, :, self.positions_RT] = v_BKTH.transpose(1, 2)
        return keys, values

    def attend(self, layer: int, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, sight: Sight) -> Tensor:
        """Write keys and values, and gather what each row sees by the piece of its size: [R, T, N * H]."""
        k_BKSH, v_BKSH = self.write(layer, k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2))
        seen = sight[0].attend(q_BTNH, k_BKSH, v_BKSH)
        for piece, size in zip(sight[1:], self._sizes[1:], strict=True):
            is_own = (self._num_keys_RT == size)[..., None]
            seen = torch.where(is_own, piece.attend(q_BTNH, k_BKSH, v_BKSH), seen)
        return seen

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """Return all rows over every number of keys that one of them sees: seldom more than two."""
        slots_S = torch.arange(self._sizes[-1], device=self.positions_RT.device)
        hidden_RTS = slots_S > self.positions_RT[..., None]
        mask_RTS = self._slots.new_zeros(hidden_RTS.shape).masked_fill_(hidden_RTS, -math.inf)
        mask_for_all = mask_for_groups(mask_RTS[:, None], num_queries_per_kv)
        return tuple(RowPiece(slice(None), size, mask_for_all[..., :size]) for size in self._sizes)
