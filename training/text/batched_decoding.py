"""Decode many prompts at once, for training text: left-padded rows, one shared cursor, no drafting."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from runtime.models.decoder import Decoder
from runtime.models.kv_cache import KVCache

_TOP_K = 1024
_LEAST_ALIVE = 0.75
"""Finished rows are dropped as soon as less than this share of the rows is still going."""


@torch.inference_mode()
def decode_batch(
    target: Decoder,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    *,
    top_p: float,
    stop_ids: Collection[int],
    max_new_tokens: int,
    generator: torch.Generator,
) -> list[list[int]]:
    """Return the target's answer to each prompt at its temperature, up to a stop token or `max_new_tokens`.

    Tokens are sampled from the smallest set of best ones with `top_p` of the probability; a row's draws depend on its
    place in the batch alone.
    """
    device = target.embedding.weight.device
    uniforms_BT = torch.rand(len(prompts), max_new_tokens, generator=generator).to(device)
    temperatures_B = torch.tensor(temperatures, dtype=torch.float32, device=device)
    rows = _LiveRows(target, prompts, spare=max_new_tokens)
    answers: list[list[int]] = [[] for _ in prompts]
    for step in range(max_new_tokens):
        going = rows.numbers
        chosen = choose_tokens(rows.logits_RV, temperatures_B[going], uniforms_BT[going, step], top_p)
        for row, token in zip(going.tolist(), chosen.tolist(), strict=True):
            if not answers[row] or answers[row][-1] not in stop_ids:
                answers[row].append(token)
        alive = [at for at, row in enumerate(going.tolist()) if answers[row][-1] not in stop_ids]
        if not alive:
            break
        if step + 1 < max_new_tokens:
            rows.advance(chosen, alive)
    return answers


def choose_tokens(logits_RV: Tensor, temperatures_R: Tensor, uniforms_R: Tensor, top_p: float) -> Tensor:
    """Return one token per row, by its uniform number in [0, 1), among the 1,024 best of its distribution."""
    greedy = logits_RV.argmax(-1)
    if not bool((temperatures_R > 0).any()):
        return greedy
    divisor = torch.where(temperatures_R > 0, temperatures_R, 1.0)
    best, ids = (logits_RV.float() / divisor[:, None]).softmax(-1).topk(min(_TOP_K, logits_RV.shape[-1]))
    kept = best * (best.cumsum(-1) - best < top_p)
    cumulative = kept.cumsum(-1)
    place = (cumulative <= uniforms_R[:, None] * cumulative[:, -1:]).sum(-1)
    place = torch.minimum(place, (kept > 0).sum(-1) - 1)
    sampled = ids.gather(-1, place[:, None])[:, 0]
    return torch.where(temperatures_R > 0, sampled, greedy)


class _LiveRows:
    """The sequences still in memory: their cache, padding and next-token logits."""

    def __init__(self, target: Decoder, prompts: Sequence[Sequence[int]], *, spare: int) -> None:
        weight = target.embedding.weight
        width = max(map(len, prompts))
        self._target = target
        self._cache = KVCache(
            target.config, width + spare, dtype=weight.dtype, device=str(weight.device), num_sequences=len(prompts)
        )
        self._pads_R = torch.tensor([width - len(prompt) for prompt in prompts], device=weight.device)
        self.numbers = torch.arange(len(prompts), device=weight.device)
        """Places in the batch of the sequences that are left."""
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=weight.device)
        self.logits_RV = self._forward(ids)
        """Logits for each sequence's next token."""

    def advance(self, tokens_R: Tensor, alive: list[int]) -> None:
        if len(alive) < _LEAST_ALIVE * len(self.numbers):
            kept = torch.tensor(alive, device=self.numbers.device)
            self._cache.memory.slots = self._cache.memory.slots[:, :, kept]
            self._pads_R, self.numbers, tokens_R = self._pads_R[kept], self.numbers[kept], tokens_R[kept]
        self.logits_RV = self._forward(tokens_R[:, None])

    def _forward(self, ids_RT: Tensor) -> Tensor:
        target, count = self._target, ids_RT.shape[1]
        slots_T = torch.arange(self._cache.cursor, self._cache.cursor + count, device=ids_RT.device)
        x_RTD = target.embedding(ids_RT)
        x_RTD = target.run_layers(
            x_RTD,
            0,
            target.config.num_layers,
            positions=(slots_T - self._pads_R[:, None]).clamp(min=0),
            mask=self._mask(slots_T, x_RTD.dtype),
            cache=self._cache,
        )
        self._cache.advance(count)
        return target.logits(x_RTD[:, -1:])[:, 0]

    def _mask(self, slots_T: Tensor, dtype: torch.dtype) -> Tensor:
        """[R, 1, T, S]: a row sees its own slot and earlier ones; padding is seen by padding alone."""
        keys_S = torch.arange(int(slots_T[-1]) + 1, device=slots_T.device)
        past_TS = keys_S <= slots_T[:, None]
        own_TS = keys_S == slots_T[:, None]
        padding_RS = keys_S < self._pads_R[:, None]
        hidden = ~(past_TS & ~padding_RS[:, None] | own_TS)
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -math.inf)[:, None]
