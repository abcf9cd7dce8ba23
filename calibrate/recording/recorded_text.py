"""The target's own text of a prompt, greedy or sampled, with the hidden states it had on the way.

One row at a time, as plain decoding runs, so the text is that of autoregressive decoding on the same back end to the
last bit, with the draws of its seed; texts of several prompts are written in `calibrate.recording.texts_side_by_side`.
Shapes: legend of `runtime.models.decoder`; P is the prompt's length, N the text's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoding.errors import RecordError
from decoding.messages import NO_WINDOW
from decoding.sequence import DecodedSequence
from runtime.backends.backend import Backend, Plan, segments_between
from runtime.backends.sequences import Text
from runtime.models.config import ModelConfig
from runtime.models.masks import prefill_pieces
from runtime.verification.distributions import probabilities
from runtime.verification.rules import GREEDY, Sampling, decide


class TargetText(NamedTuple):
    """A text and what the target thought while writing it.

    Attributes:
        tokens: N new ids; ends with EOS or at the length asked for.
        states: by layer, hidden states after it, [P + N - 1, D]: the last token is never read.
        margins: best logit over the second best at every token, [N]. Near zero, other arithmetic may choose otherwise.
        probabilities: the target's at every token, each [V]; none of a greedy text.
    """

    tokens: list[int]
    states: dict[int, Tensor]
    margins: list[float]
    probabilities: list[NDArray[np.float32]]


class WantedText(NamedTuple):
    """A text to write: after which prompt, and how its tokens are chosen."""

    prompt: Sequence[int]
    sampling: Sampling = GREEDY


@torch.inference_mode()
def target_text(
    target: Backend, prompt: Sequence[int], *, max_new_tokens: int, layers: Sequence[int], sampling: Sampling = GREEDY
) -> TargetText:
    """Decode plainly, keeping the states after `layers` (counted from 1; those of the last one before the norm).

    Raises:
        RecordError: prompt and text together do not fit in the target's positions.
    """
    require_room(target.config, len(prompt), max_new_tokens)
    reader, text = LayerReader(target, layers), target.new_text()
    reader.prepare(num_prompt=len(prompt), max_new_tokens=max_new_tokens)
    writing = Writing(target, WantedText(prompt, sampling), max_new_tokens)
    reader.read_prompt(writing, text, max_new_tokens)
    while writing.unfinished:
        writing.go_on(reader.read_next(writing, text))
    return writing.result(target)


def require_room(config: ModelConfig, num_prompt: int, max_new_tokens: int) -> None:
    """Raise `RecordError` where prompt and text together do not fit in the target's positions."""
    if num_prompt + max_new_tokens - 1 > config.max_position:
        msg = f"{num_prompt} prompt and {max_new_tokens} new tokens exceed the target's {config.max_position}"
        raise RecordError(msg)


class Seen(NamedTuple):
    """What the target made of some rows of a text: states by wanted layer, [T, D], and logits after the last row."""

    states: dict[int, Tensor]
    logits_1V: Tensor

    def equals(self, other: Seen) -> bool:
        """Whether all numbers are the same to the last bit."""
        return torch.equal(self.logits_1V, other.logits_1V) and all(
            torch.equal(rows, other.states[layer]) for layer, rows in self.states.items()
        )


class Writing:
    """A text under way after its prompt; `last` is the token to feed next at `position`, or the one fed last."""

    def __init__(self, target: Backend, wanted: WantedText, max_new_tokens: int) -> None:
        self.prompt, self._sampling = wanted.prompt, wanted.sampling
        self._sequence = DecodedSequence(
            self.prompt, max_new_tokens=max_new_tokens, eos_token_ids=target.config.eos_token_ids
        )
        self._rows: list[dict[int, Tensor]] = []
        self._margins: list[float] = []
        self._chosen_from: list[NDArray[np.float32]] = []
        self.last, self.position = self.prompt[-1], len(self.prompt) - 1

    @property
    def unfinished(self) -> bool:
        """Whether it goes on."""
        return self._sequence.unfinished

    def keep(self, states: dict[int, Tensor]) -> None:
        """Keep the states of the rows that were read."""
        self._rows.append(states)

    def go_on(self, seen: Seen) -> None:
        """Append the token that follows the row read last, which was `last`."""
        self.keep(seen.states)
        verdict = decide(seen.logits_1V, NO_WINDOW, self._sampling, self.position + 1)
        if not self._sampling.is_greedy:
            self._chosen_from.append(probabilities(seen.logits_1V[0], self._sampling.temperature).astype(np.float32))
        best, second = seen.logits_1V[0].float().topk(2).values.tolist()
        self._margins.append(best - second)
        self._sequence.commit(NO_WINDOW, verdict)
        if self.unfinished:
            self.last, self.position = verdict.next_token, self.position + 1

    def result(self, target: Backend) -> TargetText:
        """The finished text."""
        states = {layer: target.on_host(torch.cat([rows[layer] for rows in self._rows]))[0] for layer in self._rows[0]}
        return TargetText(self._sequence.tokens, states, self._margins, self._chosen_from)


class LayerReader:
    """Feeds rows to the target and returns the outputs of the wanted layers."""

    def __init__(self, target: Backend, layers: Sequence[int]) -> None:
        self._target, self.layers = target, tuple(sorted(set(layers)))

    def prepare(self, *, num_prompt: int, max_new_tokens: int, num_texts: int = 0) -> None:
        """Be ready for texts, or for some side by side, whose longest prompt has `num_prompt` tokens."""
        segments = segments_between(*self.layers, self._target.config.num_layers)
        self._target.prepare(
            Plan(
                num_slots=num_prompt + max_new_tokens - 1,
                num_prompt=num_prompt,
                rows=(1,),
                segments=segments,
                prompt_segments=segments if num_prompt > 1 else (),
                num_branches=num_texts,
            )
        )

    def read_prompt(self, writing: Writing, text: Text, max_new_tokens: int) -> None:
        """Begin a text with all tokens of its prompt but the last."""
        text.start(len(writing.prompt) + max_new_tokens - 1)
        for start, stop in prefill_pieces(len(writing.prompt) - 1):
            states, _ = self.run(np.array([writing.prompt[start:stop]]), np.arange(start, stop), text)
            text.advance(stop - start)
            writing.keep({layer: x_BTD[0] for layer, x_BTD in states.items()})

    def read_next(self, writing: Writing, text: Text) -> Seen:
        """Feed a text's next token alone."""
        states, x_BTD = self.run(np.array([[writing.last]]), np.array([writing.position]), text)
        text.advance(1)
        (logits_1V,) = self._target.on_host(self._target.logits(x_BTD)[0])
        return Seen({layer: rows[0] for layer, rows in states.items()}, logits_1V)

    def run(self, ids_BT: NDArray[np.int64], positions: Any, cache: Any) -> tuple[dict[int, Tensor], Tensor]:
        """Hidden states after the wanted layers and after the last one, [B, T, D] each."""
        x_BTD, states, done = self._target.embedding(ids_BT), {}, 0
        for layer in dict.fromkeys((*self.layers, self._target.config.num_layers)):
            x_BTD = self._target.run_layers(x_BTD, done, layer, positions=positions, cache=cache)
            done = layer
            if layer in self.layers:
                states[layer] = x_BTD
        return states, x_BTD
