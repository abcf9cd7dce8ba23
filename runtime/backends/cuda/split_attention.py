"""Attention over many keys in chunks, which a GPU computes in parallel.

An attention kernel has a block of threads for each key/value head, which reads all keys one after another, so with
eight heads most of a large GPU idles. So the keys are cut into chunks, attention is computed for each, and the outputs
are added, weighted by each chunk's share of the softmax. Shapes: legend of `runtime.models.decoder`; C chunks of W
keys, R rows (all query heads of a key/value head).
"""

import math
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.models.row_invariance import RowPiece, attention

LEAST_CHUNK: Final = 256
_MOST_CHUNKS: Final = 16
_LEAST_KEYS: Final = 1024
HIDDEN: Final = -1e30
"""What is added to scores of masked keys: finite, so that a chunk with only masked keys gets weight 0 and not NaN."""


def is_split(num_keys: int) -> bool:
    """Return whether `num_keys` keys are read in chunks."""
    return num_keys >= _LEAST_KEYS and num_keys % chunk_size(num_keys) == 0


def chunk_size(num_keys: int) -> int:
    """Return the number of keys of a chunk."""
    return max(LEAST_CHUNK, num_keys // _MOST_CHUNKS)


class SplitPiece(RowPiece):
    """Rows of a call that are computed in chunks; the mask is that of all chunks, [C, B * K, R, W]."""

    def attend(self, q_BTNH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor) -> Tensor:
        """Return the output of attention [B, T, N * H] for the queries of this piece."""
        return attention(q_BTNH, k_BKSH, v_BKSH, self.mask, by=attend_in_chunks)


def mask_of_chunks(mask_B1RS: Tensor, num_kv_heads: int) -> Tensor:
    """Return the mask of all chunks, [C, B * K, R, W]."""
    mask = mask_B1RS.expand(-1, num_kv_heads, -1, -1).flatten(0, 1)
    return mask.view(*mask.shape[:2], -1, chunk_size(mask.shape[2])).permute(2, 0, 1, 3).contiguous()


def attend_in_chunks(q_BKRH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Return the output of attention [B, K, R, H]; keys and values must be evenly spaced over sequences and heads."""
    assert attn_mask is not None, "chunks without their mask"
    (num_chunks, _, _, size), num_rows = attn_mask.shape, q_BKRH.shape[2]
    q = q_BKRH.flatten(0, 1).expand(num_chunks, -1, -1, -1)
    shape = q.shape[1], num_chunks, size, q.shape[3]
    k, v = (keys.flatten(0, 1).view(shape).transpose(0, 1) for keys in (k_BKSH, v_BKSH))
    out, log_sums = (_on_gpu if q.is_cuda else _on_cpu)(q, k, v, attn_mask)
    shares = log_sums[:, :, :num_rows].softmax(0).unsqueeze(-1)
    return (out * shares).sum(0).to(q.dtype).view(q_BKRH.shape)


def _on_gpu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    # unlike `scaled_dot_product_attention`, this kernel also returns the softmax's log sums
    out, log_sums, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        q, k, v, mask, compute_log_sumexp=True
    )
    return out, log_sums


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    scores = q.float() @ k.float().transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), scores.logsumexp(-1)
