"""The target's own greedy text of a prompt, with the hidden states it had on the way.

One row at a time, as plain decoding runs, so the text is that of autoregressive decoding to the last bit. Shapes:
legend of `runtime.models.decoder`; P is the prompt's length, N the text's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.errors import RecordError
from decoding.messages import NO_WINDOW
from decoding.sequence import DecodedSequence
from runtime.models.decoder import Decoder
from runtime.models.kv_cache import KVCache
from runtime.models.masks import prefill_pieces
from runtime.verification.rules import verify_greedy


class GreedyText(NamedTuple):
    """A text and what the target thought while writing it.

    Attributes:
        tokens: N new ids; ends with EOS or at the length asked for.
        states: by layer, hidden states after it at positions 0..P + N - 2 (the last token is never read), each
            [P + N - 1, D].
        margins: by how much the best logit exceeds the second best at every token, [N]. Near zero, other
            arithmetic (that of a tree, another machine's) may choose another token.
    """

    tokens: list[int]
    states: dict[int, Tensor]
    margins: list[float]


@torch.inference_mode()
def greedy_text(target: Decoder, prompt: Sequence[int], *, max_new_tokens: int, layers: Sequence[int]) -> GreedyText:
    """Decode greedily, keeping the states after `layers` (counted from 1; those of the last one before the norm).

    Raises:
        RecordError: prompt and text together do not fit in the target's positions.
    """
    num_positions = len(prompt) + max_new_tokens - 1
    if num_positions > len(target.rotary.cos_PH):
        msg = f"{len(prompt)} prompt and {max_new_tokens} new tokens exceed the target's {len(target.rotary.cos_PH)}"
        raise RecordError(msg)
    reader = _Reader(target, num_positions, layers)
    for start, stop in prefill_pieces(len(prompt) - 1):
        reader.read(prompt[start:stop])
    sequence = DecodedSequence(prompt, max_new_tokens=max_new_tokens, eos_token_ids=target.config.eos_token_ids)
    margins, last = [], prompt[-1]
    while sequence.unfinished:
        logits_TV = target.logits(reader.read([last]))[0]
        verdict = verify_greedy(logits_TV, NO_WINDOW)
        best, second = logits_TV[0].float().topk(2).values.tolist()
        margins.append(best - second)
        last = verdict.next_token
        sequence.commit(NO_WINDOW, verdict)
    states = {layer: torch.cat(rows) for layer, rows in reader.rows.items()}
    return GreedyText(sequence.tokens, states, margins)


class _Reader:
    """Feeds rows to the target and keeps the outputs of the wanted layers."""

    def __init__(self, target: Decoder, capacity: int, layers: Sequence[int]) -> None:
        self.target = target
        self.rows: dict[int, list[Tensor]] = {layer: [] for layer in sorted(set(layers))}
        self.cache = KVCache(target.config, capacity, dtype=target.embedding.weight.dtype)

    def read(self, ids: Sequence[int]) -> Tensor:
        """Hidden states after the last layer [1, T, D] of the next rows of the text."""
        count, context = len(ids), self.cache.cursor
        positions = torch.arange(context, context + count)
        x_BTD: Tensor = self.target.embedding(torch.tensor([list(ids)]))
        done = 0
        for layer in dict.fromkeys((*self.rows, self.target.config.num_layers)):
            x_BTD = self.target.run_layers(x_BTD, done, layer, positions=positions, cache=self.cache)
            done = layer
            if layer in self.rows:
                self.rows[layer].append(x_BTD[0])
        self.cache.advance(count)
        return x_BTD
