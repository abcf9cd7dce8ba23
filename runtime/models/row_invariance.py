"""Batch-invariant linear layers and attention: a row has the same bits, however many rows are computed together.

On CPUs, few rows use other kernels than many, so a layer's rows are padded to a multiple that a probe finds for each
shape. `scaled_dot_product_attention` sums in another order for another number of keys, masked ones included. So a row
is computed over all keys up to the next multiple of `KEYS_AT_ONCE` after its slot, with later ones masked, and rows are
padded to a multiple of `ROWS_AT_ONCE`. Shapes: legend of `runtime.models.decoder`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_MULTIPLES: Final = (1, 2, 4, 8, 16, 32, 64)
_PROBED_ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 18, 31, 33, 48, 64)
_MOST_OUTPUTS: Final = 512
"""Most outputs of a probed layer; no kernel was seen to depend on the number of outputs beyond it."""


class Linear(nn.Linear):
    """A batch-invariant linear layer, see `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return rows [..., out] of rows [..., in]."""
        return linear(x, self.weight, self.bias)

    @property
    def row_multiple(self) -> int:
        """The multiple to which the number of rows is padded."""
        return (_multiple(self.weight, self.bias) or 1) if self.weight.is_cpu else 1


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows [..., in] by a weight [out, in]; the bits of a row do not depend on the number of rows."""
    if torch.is_grad_enabled() or not weight.is_cpu:
        return F.linear(x, weight, bias)
    # always two dimensions: an input of three may use another kernel
    *batch, num_inputs = x.shape
    rows = x.reshape(-1, num_inputs)
    num_rows = rows.shape[0]  # `len` of a tensor takes as long as a small product
    if missing := -num_rows % (_multiple(weight, bias) or 1):
        rows = F.pad(rows, (0, 0, 0, missing))
    return F.linear(rows, weight, bias)[:num_rows].view(*batch, weight.shape[0])


def _multiple(weight: Tensor, bias: Tensor | None) -> int | None:
    """Return the multiple to which rows must be padded for batch invariance; None if no multiple achieves it."""
    outputs, inputs = weight.shape
    outputs = min(outputs, _MOST_OUTPUTS)
    return _fitting_multiple(outputs, inputs, weight.dtype, bias is not None, torch.get_num_threads())


@cache
def _fitting_multiple(
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    has_bias: bool,  # noqa: FBT001
    num_threads: int,  # noqa: ARG001
) -> int | None:
    generator = torch.Generator().manual_seed(0)
    most = max(_PROBED_ROWS) + max(_MULTIPLES)
    half = inputs // 2
    # the two halves of a row cancel, so what is left is the rounding, which depends on the order of summation
    plus = torch.randn(most, half, generator=generator).to(dtype)
    rows = torch.cat([plus, -plus, plus.new_zeros(most, inputs % 2)], dim=1)
    weight = torch.randn(outputs, inputs, generator=generator)
    weight[:, half : 2 * half] = weight[:, :half]
    weight = weight.to(dtype)
    bias = torch.zeros(outputs, dtype=dtype) if has_bias else None

    @cache
    def product(count: int) -> Tensor:
        return F.linear(rows[:count], weight, bias)

    def fits(multiple: int) -> bool:
        counts = [count + -count % multiple for count in _PROBED_ROWS]
        return all(torch.equal(product(count), product(most)[:count]) for count in counts)

    with torch.autocast("cpu", enabled=False):  # the cached result must not depend on training's autocast
        return next(filter(fits, _MULTIPLES), None)


KEYS_AT_ONCE: Final = 64
ROWS_AT_ONCE: Final = 4


class RowPiece(NamedTuple):
    """Rows of a call that are computed over the same number of keys (None: all keys).

    `mask` is of `mask_for_groups`; None lets the rows see all these keys.
    """

    rows: slice
    num_keys: int | None
    mask: Tensor | None

    def attend(self, q_BTNH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor) -> Tensor:
        """Return the output of attention [B, T, N * H] for the queries of this piece."""
        return attention(q_BTNH, k_BKSH[:, :, : self.num_keys], v_BKSH[:, :, : self.num_keys], self.mask)


Sight = tuple[RowPiece, ...]
"""Which keys the rows of a call see; the same for all layers."""


class LayerKeys(ABC):
    """A KV cache or a substitute for one: stores keys and values of a call's rows, and knows which keys they see."""

    @abstractmethod
    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of this call's rows; return all that the rows may see, [B, K, S, H] each."""

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """Return what rows see by an additive mask, broadcastable to [B, 1, T, S]; None lets all rows see all keys."""
        return (RowPiece(slice(None), None, mask if mask is None else mask_for_groups(mask, num_queries_per_kv)),)

    def attend(self, layer: int, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, sight: Sight) -> Tensor:
        """Write keys and values; return the output of attention, [B, T, N * H]."""
        k_BKSH, v_BKSH = self.write(layer, k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2))
        if len(sight) == 1:
            return sight[0].attend(q_BTNH, k_BKSH, v_BKSH)
        return torch.cat([piece.attend(q_BTNH[:, piece.rows], k_BKSH, v_BKSH) for piece in sight], dim=1)


class WithinCall(LayerKeys):
    """No cache: the rows of a call see only each other."""

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the rows given."""
        return k_BKTH, v_BKTH


def attention(
    q_BTNH: Tensor,
    k_BKSH: Tensor,
    v_BKSH: Tensor,
    mask: Tensor | None,
    *,
    by: Callable[..., Tensor] = F.scaled_dot_product_attention,
) -> Tensor:
    """Return the output of grouped-query attention [B, T, N * H].

    The query heads of a key/value head are computed as further rows, so keys are not repeated; the mask must have these
    rows too (`mask_for_groups`).
    """
    num_sequences, num_rows, num_heads, head_dim = q_BTNH.shape
    num_kv_heads = k_BKSH.shape[1]
    group = num_heads // num_kv_heads
    q = q_BTNH.reshape(num_sequences, num_rows, num_kv_heads, group, head_dim)
    q = q.permute(0, 2, 3, 1, 4).reshape(num_sequences, num_kv_heads, group * num_rows, head_dim)
    if missing := -group * num_rows % ROWS_AT_ONCE:
        q = F.pad(q, (0, 0, 0, missing))
    x = by(q, k_BKSH, v_BKSH, attn_mask=mask)
    if missing:
        x = x[:, :, : group * num_rows]
    x = x.view(num_sequences, num_kv_heads, group, num_rows, head_dim)
    return x.permute(0, 3, 1, 2, 4).reshape(num_sequences, num_rows, num_heads * head_dim)


def mask_for_groups(mask: Tensor, num_queries_per_kv: int) -> Tensor:
    """Repeat a mask's rows for every query head of a key/value head, and add rows of padding."""
    *batch, num_rows, num_keys = mask.shape
    missing = -num_queries_per_kv * num_rows % ROWS_AT_ONCE
    if num_rows == 1:
        return mask.expand(*batch, num_queries_per_kv + missing, num_keys)
    mask = mask.repeat(*[1] * len(batch), num_queries_per_kv, 1)
    return F.pad(mask, (0, 0, 0, missing)) if missing else mask


def with_all_keys(mask: Tensor, num_keys: int) -> Tensor:
    """Return the mask cut or extended to `num_keys` keys; added keys are masked."""
    missing = num_keys - mask.shape[-1]
    return F.pad(mask, (0, missing), value=-math.inf) if missing > 0 else mask[..., :num_keys]


def keys_seen(slot: int) -> int:
    """Return over how many keys a row in a slot is computed, which must not depend on the rest of its call."""
    return slot + 1 + -(slot + 1) % KEYS_AT_ONCE
