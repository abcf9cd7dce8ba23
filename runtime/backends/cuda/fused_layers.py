"""Fused Triton kernels for the norms, rotations and activations of a layer, for which torch launches twenty kernels.

Each kernel computes a row by itself, in float32, and rounds once, so a row's bits do not depend on the number of rows.
Shapes: legend of `runtime.models.decoder`; I intermediate size.
"""

from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from runtime.backends.cuda.captured_calls import CapturedCall
from runtime.models.decoder import Decoder, Layer, Rotation
from runtime.models.row_invariance import LayerKeys, Sight

_ACTIVATED = 1024
"""Numbers of a row that one Triton program of the activation computes."""


class FusedLayer(Layer):
    """A layer of the Llama kind, computed by fused kernels."""

    def forward(self, x_BTD: Tensor, rotary: Rotation, sight: Sight, cache: LayerKeys, index: int) -> Tensor:
        """See `Layer`; the cache is a `CapturedCall`."""
        call, eps = cast("CapturedCall", cache), self.config.norm_eps
        _, unit_BTD = add_and_normalise(x_BTD, None, self.input_norm, eps)
        keys, values = call.slots(index)
        q_BTNH = self._rotate_and_store(self.qkv(unit_BTD), rotary, call.places_BT, keys, values)
        (piece,) = sight
        added = self.out(piece.attend(q_BTNH, keys, values))
        x_BTD, unit_BTD = add_and_normalise(x_BTD, added, self.mlp_norm, eps)
        return x_BTD + self.down(activate(self.gate_up(unit_BTD)))  # type: ignore[no-any-return]

    def _rotate_and_store(
        self, qkv: Tensor, rotary: Rotation, places_BT: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Write keys and values to their slots, and return the queries [B, T, N, H], in memory [B, N, T, H]."""
        config, (num_texts, num_rows) = self.config, places_BT.shape
        q_BNTH = qkv.new_empty(num_texts, config.num_heads, num_rows, config.head_dim)
        _rotate_and_store[(num_texts * num_rows, config.num_heads + 2 * config.num_kv_heads)](
            qkv,
            self.input_norm if self.q_norm is None else self.q_norm,
            self.input_norm if self.k_norm is None else self.k_norm,
            *rotary,
            places_BT,
            q_BNTH,
            keys,
            values,
            num_rows,
            keys.stride(0),
            keys.stride(1),
            config.norm_eps,
            is_normed=self.q_norm is not None,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            size=config.head_dim,
            block=triton.next_power_of_2(config.head_dim // 2),
            num_warps=1,
        )
        return q_BNTH.transpose(1, 2)


def fuse(decoder: Decoder) -> None:
    """Make fused kernels compute the layers of a decoder on a GPU, if they are of the Llama kind.

    Raises `RuntimeError`, `CalledProcessError` or `PermissionError` if no kernel can be compiled.
    """
    config, weight = decoder.config, decoder.final_norm
    with torch.cuda.device_of(weight):  # type: ignore[no-untyped-call]
        activate(weight.new_zeros(1, 2))
    if config.positions == "rotary" and config.norm == "rms" and config.mlp == "gated":
        for layer in decoder.layers:
            layer.__class__ = FusedLayer


def add_and_normalise(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the rounded sum of `x` and `added` (if any), and the RMS norm of that with a weight; both like `x`."""
    size = x.shape[-1]
    total, out = x if added is None else torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(size)
    _add_and_normalise[(x.numel() // size,)](
        x,
        x if added is None else added,
        weight,
        total,
        out,
        eps,
        size=size,
        is_sum=added is not None,
        block=block,
        num_warps=min(16, max(1, block // 512)),
    )
    return total, out


def activate(gate_up: Tensor) -> Tensor:
    """Return the activation of a gated MLP [..., I], from gates and values [..., 2 * I]."""
    size = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], size)
    _activate[(out.numel() // size, triton.cdiv(size, _ACTIVATED))](gate_up, out, size=size, block=_ACTIVATED)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _add_and_normalise(  # noqa: PLR0913, PLR0917  a kernel takes pointers and numbers only
    x_ptr: tl.tensor,
    added_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    total_ptr: tl.tensor,
    out_ptr: tl.tensor,
    eps: tl.tensor,
    size: tl.constexpr,
    is_sum: tl.constexpr,
    block: tl.constexpr,
) -> None:
    columns = tl.arange(0, block)
    is_own = columns < size
    places = tl.program_id(0).to(tl.int64) * size + columns
    x = tl.load(x_ptr + places, mask=is_own, other=0.0).to(tl.float32)
    if is_sum:
        x += tl.load(added_ptr + places, mask=is_own, other=0.0).to(tl.float32)
        rounded = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + places, rounded, mask=is_own)
        x = rounded.to(tl.float32)
    unit = x * tl.rsqrt(tl.sum(x * x) / size + eps)
    weight = tl.load(weight_ptr + columns, mask=is_own, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, (unit * weight).to(out_ptr.dtype.element_ty), mask=is_own)


@triton.jit  # type: ignore[untyped-decorator]
def _activate(gate_up_ptr: tl.tensor, out_ptr: tl.tensor, size: tl.constexpr, block: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    is_own = columns < size
    gate = tl.load(gate_up_ptr + row * 2 * size + columns, mask=is_own, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * size + size + columns, mask=is_own, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * size + columns, out.to(out_ptr.dtype.element_ty), mask=is_own)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_and_store(  # noqa: PLR0913, PLR0917  as above
    qkv_ptr: tl.tensor,
    q_norm_ptr: tl.tensor,
    k_norm_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    places_ptr: tl.tensor,
    q_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    num_rows: tl.tensor,
    text_stride: tl.tensor,
    head_stride: tl.tensor,
    eps: tl.tensor,
    is_normed: tl.constexpr,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Compute one head of one row: rotate a query or a key, and store it or a value."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    text, half = row // num_rows, size // 2
    columns = tl.arange(0, block)
    is_own = columns < half
    given = qkv_ptr + (row * (num_heads + 2 * num_kv_heads) + head) * size + columns
    low = tl.load(given, mask=is_own, other=0.0).to(tl.float32)
    high = tl.load(given + half, mask=is_own, other=0.0).to(tl.float32)
    if head < num_heads + num_kv_heads:
        is_query = head < num_heads
        if is_normed:
            scale = tl.rsqrt((tl.sum(low * low) + tl.sum(high * high)) / size + eps)
            weight_ptr = (q_norm_ptr if is_query else k_norm_ptr) + columns
            low = low * scale * tl.load(weight_ptr, mask=is_own, other=0.0).to(tl.float32)
            high = high * scale * tl.load(weight_ptr + half, mask=is_own, other=0.0).to(tl.float32)
        places = row * size + columns
        low_cos = tl.load(cos_ptr + places, mask=is_own, other=0.0)
        low_sin = tl.load(sin_ptr + places, mask=is_own, other=0.0)
        high_cos = tl.load(cos_ptr + places + half, mask=is_own, other=0.0)
        high_sin = tl.load(sin_ptr + places + half, mask=is_own, other=0.0)
        turned = low * low_cos - high * low_sin
        high = high * high_cos + low * high_sin
        low = turned
    if head < num_heads:
        out = q_ptr + ((text * num_heads + head) * num_rows + row % num_rows) * size
    else:
        own_head = (head - num_heads) % num_kv_heads
        own_place = text * text_stride + own_head * head_stride + tl.load(places_ptr + row) * size
        out = (keys_ptr if head < num_heads + num_kv_heads else values_ptr) + own_place
    tl.store(out + columns, low.to(q_ptr.dtype.element_ty), mask=is_own)
    tl.store(out + half + columns, high.to(q_ptr.dtype.element_ty), mask=is_own)
