"""What a draft proposes after every prefix of a text, many prefixes at once.

Every prefix shares the committed text; its drafted tokens are a branch of their own. One pass per drafted token
advances a block of branches under a tree mask. Used for acceptance records and for judging a trained draft.

Shapes: legend of `runtime.models.decoder`, plus P prefixes, R of them in a block, F alternatives, N drafted tokens,
J streams of the draft, and E the width of the exit features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from runtime.drafters.language_model.model import DraftModel, DraftStates
from runtime.drafters.streams.model import keys_of, stream_mask
from runtime.models.decoder import causal_mask
from runtime.models.kv_cache import KVCache
from runtime.models.ranking import ranked_ids

_BLOCK_ROWS = 256


class Rollouts(NamedTuple):
    """Drafted target ids; row i follows prefix `ids[: start + i]`."""

    tokens: Tensor
    """The draft's greedy continuation, [P, N]."""
    alternatives: Tensor
    """The draft's best ids at each drafted place, best first, [P, N, F]; `alternatives[..., 0]` is `tokens`."""
    stream_hits: Tensor
    """How many guesses of the draft's streams after each drafted token come true, in a row, [P, N]; zero without."""


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
        raise ValueError(f"start {start} is outside 1..{len(ids) - 1}")
    context = len(ids) - 1
    draft.output.add_prompt_tokens(ids[:start])
    states, cache = _encode(draft, ids[:context], features_TE, spare=_BLOCK_ROWS * (num_tokens - 1))
    blocks, guesses = [], []
    for first in range(start, len(ids), _BLOCK_ROWS):
        lengths_R = torch.arange(first, min(first + _BLOCK_ROWS, len(ids)), device=states.hidden_TD.device)
        cache.set_length(context)
        block, guessed = _roll_out(draft, states.at(lengths_R - 1), lengths_R, cache, (num_tokens, num_alternatives))
        blocks.append(block)
        guesses.append(guessed)
    alternatives = torch.cat(blocks)
    tokens = alternatives[..., 0]
    return Rollouts(tokens=tokens, alternatives=alternatives, stream_hits=_hits(tokens, torch.cat(guesses)))


def _encode(
    draft: DraftModel, ids: Sequence[int], features_TE: Tensor | None, *, spare: int
) -> tuple[DraftStates, KVCache]:
    """States of the committed text, and a cache that holds it and has `spare` more slots."""
    weight = draft.decoder.embedding.weight
    count = len(ids)
    cache = KVCache(draft.decoder.config, count + spare, dtype=weight.dtype, device=str(weight.device))
    shifted_TE = None
    if features_TE is not None:
        shifted_TE = torch.zeros(count, features_TE.shape[-1], dtype=weight.dtype, device=weight.device)
        shifted_TE[1:] = features_TE[: count - 1]
    states = draft.step(
        torch.tensor(ids, device=weight.device),
        positions=torch.arange(count, device=weight.device),
        mask=causal_mask(count, weight.dtype).to(weight.device),
        cache=cache,
        features_TE=shifted_TE,
    )
    return states, cache


def _roll_out(
    draft: DraftModel, states: DraftStates, lengths_R: Tensor, cache: KVCache, counts: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Best target ids [R, N, F] after the prefixes of the given lengths, whose last rows had `states`.

    And what streams guess after the first of them at every place, [R, N, J].
    """
    num_tokens, num_alternatives = counts
    context, num_rows, like = cache.cursor, len(lengths_R), states.hidden_TD
    prefix = like.new_zeros(num_rows, context)
    prefix.masked_fill_(torch.arange(context, device=like.device) >= lengths_R[:, None], -math.inf)
    own = like.new_full((num_rows, num_rows), -math.inf).fill_diagonal_(0.0)
    columns, guesses, mask = [], [], prefix
    for step in range(num_tokens):
        best = draft.output.ids[ranked_ids(draft.output.logits(states.hidden_TD), num_alternatives)]
        columns.append(best)
        guesses.append(_guess(draft, states.entering_TD, lengths_R + step - 1, mask, cache))
        if step == num_tokens - 1:
            break
        mask = torch.cat([prefix, *[own] * (step + 1)], dim=1)
        states = draft.step(best[:, 0], positions=lengths_R + step, mask=mask, cache=cache)
    return torch.stack(columns, dim=1), torch.stack(guesses, dim=1)


def _guess(draft: DraftModel, entering_RD: Tensor, positions_R: Tensor, mask_RS: Tensor, cache: KVCache) -> Tensor:
    """The tokens that the streams of rows expect after their proposals, target ids [R, J]; J is 0 without streams."""
    if draft.streams is None:
        return positions_R.new_zeros(len(positions_R), 0)
    mask = stream_mask(mask_RS, draft.streams.config.num_streams)
    hidden_BRJD = draft.streams(entering_RD[None], positions=positions_R, mask=mask, keys=keys_of(cache))
    best_RJ: Tensor = draft.output.ids[draft.output.logits(hidden_BRJD[0]).float().argmax(dim=-1)]
    return best_RJ


def _hits(tokens_PN: Tensor, guesses_PNJ: Tensor) -> Tensor:
    """Guesses in a row that are the rollout's own tokens, as far as it goes, [P, N]."""
    num_tokens, num_streams = guesses_PNJ.shape[1:]
    padded = torch.nn.functional.pad(tokens_PN, (0, num_streams), value=-1)
    following_PNJ = padded.unfold(1, num_tokens, 1).transpose(1, 2)[..., 1:]
    return (guesses_PNJ == following_PNJ).cumprod(dim=-1).sum(dim=-1)
