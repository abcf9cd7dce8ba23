"""Decodes many prompts at once without drafting, for training text; each prompt is a branch of the KV cache."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from runtime.models.decoder import Decoder
from runtime.models.kv_cache import BranchCache, KVCache
from runtime.models.row_invariance import LayerKeys

_TOP_K = 1024
_LEAST_ALIVE = 0.75
"""Finished rows are dropped once less than this share of the rows is unfinished."""


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

    Tokens are sampled by nucleus sampling (`top_p`). A row's draws depend only on the generator and its place in the
    batch.
    """
    weight = target.embedding.weight
    uniforms_BT = torch.rand(len(prompts), max_new_tokens, generator=generator).to(weight.device)
    temperatures_B = torch.tensor(temperatures, dtype=torch.float32, device=weight.device)
    branches = BranchCache(target.config, len(prompts), dtype=weight.dtype, device=str(weight.device))
    logits_RV = _read_prompts(target, prompts, branches, max_new_tokens)
    answers: list[list[int]] = [[] for _ in prompts]
    going = list(range(len(prompts)))
    for step in range(max_new_tokens):
        chosen = choose_tokens(logits_RV, temperatures_B[going], uniforms_BT[going, step], top_p)
        for row, token in zip(going, chosen.tolist(), strict=True):
            if not answers[row] or answers[row][-1] not in stop_ids:
                answers[row].append(token)
        alive = [at for at, row in enumerate(going) if answers[row][-1] not in stop_ids]
        if not alive or step + 1 == max_new_tokens:
            break
        if len(alive) < _LEAST_ALIVE * len(going):
            branches.memory.slots = branches.memory.slots[:, :, alive]
            going, chosen = [going[at] for at in alive], chosen[alive]
        rows = branches.rows(slice(len(going)), [[len(prompts[row]) + step] for row in going])
        logits_RV = _next_logits(target, chosen[:, None], rows.positions_RT, rows)
    return answers


def _read_prompts(
    target: Decoder, prompts: Sequence[Sequence[int]], branches: BranchCache, max_new_tokens: int
) -> Tensor:
    """Read each prompt into a branch with room for its answer; return the logits of the first new tokens, [R, V]."""
    weight, longest = target.embedding.weight, max(map(len, prompts))
    branches.start(longest + max_new_tokens)
    text = KVCache(target.config, longest, dtype=weight.dtype, device=str(weight.device))
    logits = []
    for number, prompt in enumerate(prompts):
        ids_1T = torch.tensor([prompt], device=weight.device)
        text.set_length(0)
        logits.append(_next_logits(target, ids_1T, torch.arange(len(prompt), device=weight.device), text))
        text.advance(len(prompt))
        branches.take(number, len(prompt), text)
    return torch.cat(logits)


def _next_logits(target: Decoder, ids_RT: Tensor, positions: Tensor, cache: LayerKeys) -> Tensor:
    x_RTD = target.embedding(ids_RT)
    x_RTD = target.run_layers(x_RTD, 0, target.config.num_layers, positions=positions, cache=cache)
    return target.logits(x_RTD[:, -1:])[:, 0]


def choose_tokens(logits_RV: Tensor, temperatures_R: Tensor, uniforms_R: Tensor, top_p: float) -> Tensor:
    """Return one token per row: greedy at temperature 0, else sampled by `uniforms_R` (0..1) among the 1,024 best."""
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
