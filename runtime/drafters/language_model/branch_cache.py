"""Keys and values of texts that begin alike and part: every branch is a sequence of its own.

A branch that shared the text's slots and had its own ones after it would propose the same but for rounding, and where
two logits nearly tie that is another token than a fresh rollout's. Here every key lies where it would lie if the branch
were the text, so that a row has the same bits in both. The price is memory: a copy of the text for every branch; of the
time little, for what is copied once stays.
Shapes: legend of `runtime.models.decoder`, plus R branches, T rows of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.models.attention import LayerKeys, Piece, Sight, keys_seen, mask_for_groups
from runtime.models.config import ModelConfig
from runtime.models.kv_cache import KVCache


class BranchCache:
    """Keys and values [layers, R, K, capacity, H] of branches, each in the order of its own text."""

    def __init__(
        self, config: ModelConfig, num_branches: int, capacity: int, *, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        self._own = KVCache(config, capacity, dtype=dtype, device=device, num_sequences=num_branches)
        self._num_copied = 0

    @property
    def num_branches(self) -> int:
        """Branches at most."""
        return self._own.keys.shape[1]

    def start(self, num_slots: int) -> None:
        """Begin a text that needs so many slots."""
        self._own.start(num_slots)
        self._num_copied = 0

    @torch.inference_mode()
    def follow(self, text: KVCache, *, num_final: int, stop: int) -> None:
        """Give every branch the slots of a text up to `stop`; of those the first `num_final` will stay as they are."""
        self.copy(text, slice(None), self._num_copied, stop)
        self._num_copied = num_final

    @torch.inference_mode()
    def copy(self, text: KVCache, layers: slice, start: int, stop: int) -> None:
        """Give every branch some slots of a text, in some layers."""
        self._own.keys[layers, :, :, start:stop] = text.keys[layers, :, :, start:stop]
        self._own.values[layers, :, :, start:stop] = text.values[layers, :, :, start:stop]

    @torch.inference_mode()
    def give(self, branch: int, start: int, stop: int, text: KVCache) -> None:
        """Put slots of a branch into a text, at the same places."""
        text.keys[:, 0, :, start:stop] = self._own.keys[:, branch, :, start:stop]
        text.values[:, 0, :, start:stop] = self._own.values[:, branch, :, start:stop]

    def fill_random(self) -> None:
        """Random keys and values in every slot: texts to time a step after (`KVCache.fill_random`)."""
        self._own.fill_random(0)

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> BranchRowKeys:
        """Return where the next rows of some branches go: at these positions."""
        return BranchRowKeys(self._own.keys[:, branches], self._own.values[:, branches], positions_RT)

    def after_window(self, text: KVCache, num_window: int, rows: BranchRowKeys) -> WindowAndBranchKeys:
        """The next rows of a text, and then a row of every branch, in one call."""
        return WindowAndBranchKeys(text, num_window, self, rows)


class BranchRowKeys(LayerKeys):
    """Rows of branches in one call; each sees its branch up to itself."""

    def __init__(self, keys_LRKSH: Tensor, values_LRKSH: Tensor, positions_RT: Sequence[Sequence[int]]) -> None:
        self.positions_RT = torch.tensor(positions_RT, device=keys_LRKSH.device)
        self._keys, self._values = keys_LRKSH, values_LRKSH
        self._branches_R1 = torch.arange(len(positions_RT), device=keys_LRKSH.device)[:, None]
        counts = [[keys_seen(position) for position in positions] for positions in positions_RT]
        self._num_keys_RT = torch.tensor(counts, device=keys_LRKSH.device)
        self._sizes = sorted({count for row in counts for count in row})

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows at their places; return all slots of their branches."""
        keys, values = self._keys[layer], self._values[layer]
        keys[self._branches_R1, :, self.positions_RT] = k_BKTH.transpose(1, 2)
        values[self._branches_R1, :, self.positions_RT] = v_BKTH.transpose(1, 2)
        return keys, values

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """All rows over every number of keys that one of them sees: seldom more than one."""
        slots_S = torch.arange(self._sizes[-1], device=self.positions_RT.device)
        hidden_RTS = slots_S > self.positions_RT[..., None]
        mask = self._keys.new_zeros(hidden_RTS.shape).masked_fill_(hidden_RTS, -math.inf)[:, None]
        mask = mask_for_groups(mask, num_queries_per_kv)
        return tuple(Piece(slice(None), size, mask[..., :size]) for size in self._sizes)

    def attend(self, layer: int, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, sight: Sight) -> Tensor:
        """Write keys and values, and gather what each row sees: [R, T, N * H]."""
        k_BKSH, v_BKSH = self.write(layer, k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2))
        seen = sight[0].attend(q_BTNH, k_BKSH, v_BKSH)
        for piece, size in zip(sight[1:], self._sizes[1:], strict=True):
            is_own = (self._num_keys_RT == size)[..., None]
            seen = torch.where(is_own, piece.attend(q_BTNH, k_BKSH, v_BKSH), seen)
        return seen


class WindowAndBranchKeys(LayerKeys):
    """One call over the next rows of a text and one row of every branch after them, [1, T + R].

    The branches are given the text's new keys in every layer before they look.
    """

    def __init__(self, text: KVCache, num_window: int, cache: BranchCache, branches: BranchRowKeys) -> None:
        self._text, self._num_window, self._cache, self._branches = text, num_window, cache, branches
        self._of_branches: Sight = ()

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the text's rows alone."""
        return self._text.write(layer, k_BKTH, v_BKTH)

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """Return what the sequence's rows see, and keep what the branches see."""
        self._of_branches = self._branches.sight(None, 1, num_queries_per_kv)
        return self._text.sight(None, self._num_window, num_queries_per_kv)

    def attend(self, layer: int, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, sight: Sight) -> Tensor:
        """The text's rows first, then those of the branches."""
        count, start = self._num_window, self._text.cursor
        seen = self._text.attend(layer, q_BTNH[:, :count], k_BTKH[:, :count], v_BTKH[:, :count], sight)
        self._cache.copy(self._text, slice(layer, layer + 1), start, start + count)
        q_R1NH, k_R1KH, v_R1KH = (x[:, count:].transpose(0, 1) for x in (q_BTNH, k_BTKH, v_BTKH))
        own = self._branches.attend(layer, q_R1NH, k_R1KH, v_R1KH, self._of_branches)
        return torch.cat([seen, own.transpose(0, 1)], dim=1)
