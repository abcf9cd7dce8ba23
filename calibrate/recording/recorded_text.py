"""The target's own text of a prompt, greedy or sampled, with the hidden states it had on the way.

One row at a time, as plain decoding runs, so the text is that of autoregressive decoding on the same back end to the
last bit, with the draws of its seed. Shapes:
legend of `runtime.models.decoder`; P is the prompt's length, N the text's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoding.errors import RecordError
from decoding.messages import NO_WINDOW
from decoding.sequence import DecodedSequence
from runtime.backends.backend import Backend, Plan, segments_between
from runtime.models.masks import prefill_pieces
from runtime.verification.distributions import probabilities
from runtime.verification.rules import GREEDY, Sampling, decide


class TargetText(NamedTuple):
    """A text and what the target thought while writing it.

    Attributes:
        tokens: N new ids; ends with EOS or at the length asked for.
        states: by layer, hidden states after it at positions 0..P + N - 2 (the last token is never read), each
            [P + N - 1, D].
        margins: by how much the best logit exceeds the second best at every token, [N]. Near zero, other
            arithmetic (that of a tree, another machine's) may choose another token.
        probabilities: the target's at every token, each [V]; none of a greedy text.
    """

    tokens: list[int]
    states: dict[int, Tensor]
    margins: list[float]
    probabilities: list[NDArray[np.float32]]


@torch.inference_mode()
def target_text(
    target: Backend,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    layers: Sequence[int],
    sampling: Sampling = GREEDY,
) -> TargetText:
    """Decode plainly, keeping the states after `layers` (counted from 1; those of the last one before the norm).

    Raises:
        RecordError: prompt and text together do not fit in the target's positions.
    """
    config, num_positions = target.config, len(prompt) + max_new_tokens - 1
    if num_positions > config.max_position:
        msg = f"{len(prompt)} prompt and {max_new_tokens} new tokens exceed the target's {config.max_position}"
        raise RecordError(msg)
    reader = _Reader(target, len(prompt), num_positions, layers)
    for start, stop in prefill_pieces(len(prompt) - 1):
        reader.read(prompt[start:stop])
    sequence = DecodedSequence(prompt, max_new_tokens=max_new_tokens, eos_token_ids=config.eos_token_ids)
    margins, chosen_from, last = [], [], prompt[-1]
    while sequence.unfinished:
        (logits_TV,) = target.on_host(target.logits(reader.read([last]))[0])
        verdict = decide(logits_TV, NO_WINDOW, sampling, len(prompt) + len(sequence.tokens))
        if not sampling.is_greedy:
            chosen_from.append(probabilities(logits_TV[0], sampling.temperature).astype(np.float32))
        best, second = logits_TV[0].float().topk(2).values.tolist()
        margins.append(best - second)
        last = verdict.next_token
        sequence.commit(NO_WINDOW, verdict)
    states = {layer: target.on_host(torch.cat(rows))[0] for layer, rows in reader.rows.items()}
    return TargetText(sequence.tokens, states, margins, chosen_from)


class _Reader:
    """Feeds rows to the target and keeps the outputs of the wanted layers."""

    def __init__(self, target: Backend, num_prompt: int, num_slots: int, layers: Sequence[int]) -> None:
        self._target = target
        self.rows: dict[int, list[Tensor]] = {layer: [] for layer in sorted(set(layers))}
        self._text, segments = target.new_text(), segments_between(*self.rows, target.config.num_layers)
        target.prepare(
            Plan(
                num_slots=num_slots,
                num_prompt=num_prompt,
                rows=(1,),
                segments=segments,
                prompt_segments=segments if num_prompt > 1 else (),
            )
        )
        self._text.start(num_slots)

    def read(self, ids: Sequence[int]) -> Tensor:
        """Hidden states after the last layer [1, T, D] of the next rows of the text."""
        count, context = len(ids), self._text.cursor
        positions = np.arange(context, context + count)
        x_BTD = self._target.embedding(np.array([list(ids)]))
        done = 0
        for layer in dict.fromkeys((*self.rows, self._target.config.num_layers)):
            x_BTD = self._target.run_layers(x_BTD, done, layer, positions=positions, cache=self._text)
            done = layer
            if layer in self.rows:
                self.rows[layer].append(x_BTD[0])
        self._text.advance(count)
        return x_BTD  # type: ignore[no-any-return]
