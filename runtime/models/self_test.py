"""Whether a loaded decoder says the same of a row in any company: the start-up test of exact text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from runtime.models.decoder import Decoder
from runtime.models.kv_cache import KVCache

_PROMPT: Final = 57
"""Rows read before: those after them reach into the next block of keys (`runtime.models.attention.KEYS_AT_ONCE`)."""
_CHUNKS: Final = ((2, 3, 4, 3), (5, 7), (12,))


@torch.inference_mode()
def is_row_invariant(decoder: Decoder) -> bool:
    """Whether logits of a random text are the same to the last bit, read row by row and in chunks of several sizes."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(decoder.config.vocab_size, (_PROMPT + max(map(sum, _CHUNKS)),), generator=generator)
    one_by_one = _read(decoder, ids, [1] * (len(ids) - _PROMPT))
    return all(torch.equal(_read(decoder, ids, chunks), one_by_one) for chunks in _CHUNKS)


def _read(decoder: Decoder, ids: Tensor, chunks: Sequence[int]) -> Tensor:
    """Logits [T, V] of a text after its prompt, read in these chunks."""
    weight = decoder.lm_head.weight
    cache = KVCache(decoder.config, len(ids), dtype=weight.dtype, device=str(weight.device))
    found = []
    for count in (_PROMPT, *chunks):
        stop = cache.cursor + count
        positions = torch.arange(cache.cursor, stop, device=weight.device)
        x_BTD = decoder.embedding(ids[None, cache.cursor : stop].to(weight.device))
        x_BTD = decoder.run_layers(x_BTD, 0, decoder.config.num_layers, positions=positions, cache=cache)
        found.append(decoder.logits(x_BTD)[0])
        cache.advance(count)
    return torch.cat(found[1:])
