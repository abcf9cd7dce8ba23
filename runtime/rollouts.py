"""What a draft proposes after every prefix of a text, many prefixes at once.

Every prefix shares the committed text; its drafted tokens are a branch of their own. One pass per drafted token
advances a block of branches under a tree mask. Used for acceptance records and for judging a trained draft.

Shapes: legend of `runtime.decoder`, plus P prefixes, R of them in a block, F alternatives, N drafted tokens,
and E the width of the exit features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from runtime.decoder import causal_mask
from runtime.draft_model import DraftModel
from runtime.kv_cache import KVCache
from runtime.ranking import ranked_ids

_BLOCK_ROWS = 256


class Rollouts(NamedTuple):
    """Drafted target ids; row i follows prefix `ids[: start + i]`."""

    tokens: Tensor
    """The draft's greedy continuation, [P, N]."""
    alternatives: Tensor
    """The draft's best ids at each drafted place, best first, [P, N, F]; `alternatives[..., 0]` is `tokens`."""


@torch.inference_mode()
def rollouts_everywhere(
    draft: DraftModel,
    ids: Sequence[int],
    *,
    start: int,
    num_tokens: int,
    num_alternatives: int,
    features_TE: Tensor | None,
) -> Rollouts:
    """Draft `num_tokens` tokens after each of the prefixes `ids[:start]`, ..., `ids[: len(ids) - 1]`.

    Position t is fed token t and the exit features of position t - 1. Positions of a prefix have features,
    drafted ones have none: the target has not seen them yet.

    Args:
        draft: the draft model, token-only or with exit features.
        ids: a committed text, target ids.
        start: length of the shortest prefix: the prompt, whose tokens may be drafted.
        num_tokens: tokens to draft after each prefix.
        num_alternatives: best ids to report at each drafted place.
        features_TE: row t is what `normalise_features` returned for position t, for at least
            `len(ids)` - 2 positions; None drafts without features.

    Raises:
        ValueError: `start` is not the length of a prefix.
    """
    if not 1 <= start < len(ids):
        msg = f"start {start} is outside 1..{len(ids) - 1}"
        raise ValueError(msg)
    context = len(ids) - 1
    draft.output.take_in(ids[:start])
    x_TD, cache = _encode(draft, ids[:context], features_TE, spare=_BLOCK_ROWS * (num_tokens - 1))
    blocks = []
    for first in range(start, len(ids), _BLOCK_ROWS):
        lengths_R = torch.arange(first, min(first + _BLOCK_ROWS, len(ids)), device=x_TD.device)
        cache.roll_back(context)
        blocks.append(_roll_out(draft, x_TD[lengths_R - 1], lengths_R, cache, (num_tokens, num_alternatives)))
    alternatives = torch.cat(blocks)
    return Rollouts(tokens=alternatives[..., 0], alternatives=alternatives)


def _encode(draft: DraftModel, ids: Sequence[int], features_TE: Tensor | None, *, spare: int) -> tuple[Tensor, KVCache]:
    """Hidden states of the committed text [T, D], and a cache that holds it with `spare` slots behind."""
    weight = draft.decoder.embedding.weight
    count = len(ids)
    cache = KVCache(draft.decoder.config, count + spare, dtype=weight.dtype, device=str(weight.device))
    features_BTE = None
    if features_TE is not None:
        features_BTE = torch.zeros(1, count, features_TE.shape[-1], dtype=weight.dtype, device=weight.device)
        features_BTE[0, 1:] = features_TE[: count - 1]
    x_BTD = draft(
        torch.tensor([ids], device=weight.device),
        positions=torch.arange(count, device=weight.device),
        mask=causal_mask(count, weight.dtype).to(weight.device),
        cache=cache,
        features_BTE=features_BTE,
    )
    cache.advance(count)
    return x_BTD[0], cache


def _roll_out(draft: DraftModel, x_RD: Tensor, lengths_R: Tensor, cache: KVCache, counts: tuple[int, int]) -> Tensor:
    """Best target ids [R, N, F] after the prefixes of the given lengths; `x_RD` are their last hidden states."""
    num_tokens, num_alternatives = counts
    context, num_rows = cache.cursor, len(lengths_R)
    prefix = torch.zeros(num_rows, context, dtype=x_RD.dtype, device=x_RD.device)
    prefix.masked_fill_(torch.arange(context, device=x_RD.device) >= lengths_R[:, None], -math.inf)
    own = torch.full((num_rows, num_rows), -math.inf, dtype=x_RD.dtype, device=x_RD.device).fill_diagonal_(0.0)
    columns = []
    for step in range(num_tokens):
        best = draft.output.ids[ranked_ids(draft.output.logits(x_RD), num_alternatives)]
        columns.append(best)
        if step == num_tokens - 1:
            break
        mask = torch.cat([prefix, *[own] * (step + 1)], dim=1)
        x_RD = draft(best[None, :, 0], positions=lengths_R + step, mask=mask, cache=cache)[0]
        cache.advance(num_rows)
    return torch.stack(columns, dim=1)
