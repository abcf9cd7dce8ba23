"""Layers and heads on static inputs, captured once.

The computation is `runtime.models.decoder`'s own; what is here gives it inputs that stay where they are. Shapes:
legend of that module; S slots that a call looks at, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from runtime.backends.cuda.capture import GraphCapture, Upload
from runtime.models.attention import LayerKeys, Piece, Sight, mask_for_groups
from runtime.models.decoder import Decoder, causal_mask


class CapturedShape(NamedTuple):
    """Layers `start` + 1 to `stop` over the rows of some texts that look at so many slots."""

    start: int
    stop: int
    num_texts: int
    num_rows: int
    num_slots: int


class CapturedInputs:
    """Inputs of a call over so many texts and rows: hidden states, places, and who sees whom.

    `x_BTD` of rows that fill up is what it was before, which is finite. `places_BT` are the slots that rows are written
    to, `positions_BT` rotary positions. `block_TT` is additive: what rows of a single text see of each other.
    """

    def __init__(
        self, num_texts: int, num_rows: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.x_BTD = torch.zeros(num_texts, num_rows, hidden_size, dtype=dtype, device=device)
        self._numbers = Upload((2, num_texts, num_rows), torch.long, device)
        self.positions_BT, self.places_BT = self._numbers.values
        self._block = Upload((num_rows, num_rows), dtype, device)
        self.block_TT = self._block.values
        self._in_text_order = causal_mask(num_rows, dtype)
        self._block.send(self._in_text_order)
        self._is_in_text_order = True

    def restart(self) -> None:
        """Values that every capture may run on."""
        self._numbers.send(torch.zeros(self._numbers.values.shape, dtype=torch.long))

    def fill(self, x_BTD: Tensor, positions_BT: Tensor, places_BT: Tensor, block: Tensor | None = None) -> None:
        """Set a call's inputs: states of the first texts and rows, and positions and places of all, on the host.

        `block` is additive [T, T] among the first rows; None is text order.
        """
        self.x_BTD[: x_BTD.shape[0], : x_BTD.shape[1]] = x_BTD
        self._numbers.send(torch.stack([positions_BT, places_BT]))
        if block is not None:
            whole, count = self._in_text_order.clone(), len(block)
            whole[:count, :count] = block
            self._block.send(whole)
        elif not self._is_in_text_order:
            self._block.send(self._in_text_order)
        self._is_in_text_order = block is None


class StaticKeys(LayerKeys):
    """Keys and values of the texts of a call, in slots that are there before it."""

    def __init__(self, slots_L2BKSH: Tensor, rows: CapturedInputs) -> None:
        self._slots, self._rows = slots_L2BKSH, rows
        self._numbers_S = torch.arange(slots_L2BKSH.shape[4], device=slots_L2BKSH.device)

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows at their places; return all slots of the call."""
        keys, values = self._slots[layer]
        index_BKTH = self._rows.places_BT[:, None, :, None].expand_as(k_BKTH)
        return keys.scatter_(2, index_BKTH, k_BKTH), values.scatter_(2, index_BKTH, v_BKTH)

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """Every row sees its text up to itself; of the rows of a tree those of its path."""
        places_BT = self._rows.places_BT
        hidden_BTS = self._numbers_S > places_BT[..., None]
        seen_BTS = self._slots.new_zeros(hidden_BTS.shape).masked_fill_(hidden_BTS, -math.inf)
        if len(places_BT) == 1:
            seen_BTS[0].scatter_(1, places_BT.expand(num_rows, num_rows), self._rows.block_TT)
        return (Piece(slice(None), None, mask_for_groups(seen_BTS[:, None], num_queries_per_kv)),)


class CapturedSegment:
    """Layers over the rows of a `CapturedInputs`, whose keys lie in one memory: `replay` is `run` as captured."""

    def __init__(
        self, decoder: Decoder, shape: CapturedShape, rows: CapturedInputs, slots_L2BKSH: Tensor, capture: GraphCapture
    ) -> None:
        keys = StaticKeys(slots_L2BKSH[:, :, : shape.num_texts, :, : shape.num_slots], rows)
        out_BTD = torch.zeros_like(rows.x_BTD)

        def run() -> None:
            x_BTD = decoder.run_layers(
                rows.x_BTD, shape.start, shape.stop, positions=rows.positions_BT, mask=None, cache=keys
            )
            out_BTD.copy_(x_BTD)

        self._out_BTD, self.run, self.replay = out_BTD, run, capture.captured(run)

    def __call__(self, num_texts: int, num_rows: int) -> Tensor:
        """Hidden states of the first texts and rows, in memory of their own."""
        self.replay()
        return self._out_BTD[:num_texts, :num_rows].clone()


class RowsCall:
    """A computation row by row, such as a head, for up to so many rows; `replay` is it on what the buffers hold."""

    def __init__(
        self, compute: Callable[[Tensor], Tensor], num_rows: int, like_D: Tensor, capture: GraphCapture
    ) -> None:
        self._x_MD = like_D.new_zeros(num_rows, len(like_D))
        self._out_MV = torch.zeros_like(compute(self._x_MD))

        def run() -> None:
            self._out_MV.copy_(compute(self._x_MD))

        self.replay = capture.captured(run)

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Return the results of rows, in memory of their own."""
        self._x_MD[: len(x_TD)] = x_TD
        self.replay()
        return self._out_MV[: len(x_TD)].clone()
