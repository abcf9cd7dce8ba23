"""Texts of several prompts, written side by side: a step over some rows takes hardly longer than over one.

Prompts are read one after the other; then every text is a branch of its own (`runtime.backends.sequences.Branches`),
with its own place, which the next text of the group takes when one has ended. A row has the same bits whatever rows
are computed with it, so every text is that of `recorded_text.target_text` to the last bit. Where a back end's rows are
not alike, which the first step of every group shows, each text is written alone. Shapes: legend of
`runtime.models.decoder`, plus R texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch

from calibrate.recording.recorded_text import LayerReader, Seen, TargetText, WantedText, Writing, target_text
from runtime.backends.backend import Backend
from runtime.backends.sequences import Branches, Text

_MOST_ROWS: Final = 8
"""Of a step; beyond it each row costs nearly what it costs alone."""
_MOST_TEXTS: Final = 16
"""In a group: a step has rows for others while the longest text goes on."""
_MOST_BYTES: Final = 1_000_000_000
"""Of keys, values, states and probabilities of a group."""
_BUFFERS: Final = 3
"""KV positions that memory has for one that a text needs: sizes double, and what was outgrown stays."""


class TextWriter:
    """Writes texts of one length with the states after the same layers (see `target_text`)."""

    def __init__(self, target: Backend, *, max_new_tokens: int, layers: Sequence[int]) -> None:
        self._target, self._max_new_tokens = target, max_new_tokens
        self._reader, self.rows_are_alike = LayerReader(target, layers), True

    @torch.inference_mode()
    def write(self, wanted: Sequence[WantedText]) -> Iterator[TargetText]:
        """Yield the texts in their order, which fit in the target's positions; a group is written when it is due."""
        for group in self.groups(wanted):
            yield from self._side_by_side(group) or map(self._alone, group)

    def groups(self, wanted: Sequence[WantedText]) -> Iterator[list[WantedText]]:
        """Cut into texts that follow each other and fit in memory together."""
        group: list[WantedText] = []
        for text in wanted:
            if group and (len(group) == _MOST_TEXTS or self.num_bytes([*group, text]) > _MOST_BYTES):
                yield group
                group = []
            group.append(text)
        if group:
            yield group

    def num_bytes(self, group: Sequence[WantedText]) -> int:
        """What a group holds at most; every text has room for the longest."""
        config, size = self._target.config, self._target.dtype.itemsize
        keys = 2 * config.num_layers * config.num_kv_heads * config.head_dim * _BUFFERS
        states = len(self._reader.layers) * config.hidden_size
        num_positions = max(len(text.prompt) for text in group) + self._max_new_tokens
        distributions = sum(
            4 * config.vocab_size * self._max_new_tokens for text in group if not text.sampling.is_greedy
        )
        rows = min(len(group), _MOST_ROWS)
        return int(num_positions * (rows * keys + len(group) * states) * size) + distributions

    def _alone(self, text: WantedText) -> TargetText:
        return target_text(
            self._target,
            text.prompt,
            max_new_tokens=self._max_new_tokens,
            layers=self._reader.layers,
            sampling=text.sampling,
        )

    def _side_by_side(self, group: Sequence[WantedText]) -> list[TargetText]:
        """Texts of a group; none of one text, or where rows are not alike."""
        if len(group) == 1 or not self.rows_are_alike:
            return []
        writings = [Writing(self._target, text, self._max_new_tokens) for text in group]
        texts, waiting = writings[:_MOST_ROWS], writings[_MOST_ROWS:]
        own, branches = self._places(writings)
        alone = []
        for number, text in enumerate(texts):
            self._begin(text, number, own, branches)
            alone.append(self._reader.read_next(text, own))
        first = self._step(texts, branches)
        self.rows_are_alike = all(own.equals(other) for own, other in zip(first, alone, strict=True))
        if not self.rows_are_alike:
            return []
        for text, seen in zip(texts, first, strict=True):
            text.go_on(seen)
        while any(text.unfinished for text in texts):
            for text, seen in zip(texts, self._step(texts, branches), strict=True):
                if text.unfinished:
                    text.go_on(seen)
            for number, text in enumerate(texts):
                if waiting and not text.unfinished:
                    texts[number] = waiting.pop(0)
                    self._begin(texts[number], number, own, branches)
        return [text.result(self._target) for text in writings]

    def _places(self, texts: Sequence[Writing]) -> tuple[Text, Branches]:
        """Where prompts are read, and branches for as many texts as a step has rows."""
        longest, rows = max(len(text.prompt) for text in texts), min(len(texts), _MOST_ROWS)
        self._reader.prepare(num_prompt=longest, max_new_tokens=self._max_new_tokens, num_texts=rows)
        branches = self._target.new_branches(rows)
        branches.start(longest + self._max_new_tokens - 1)
        return self._target.new_text(), branches

    def _begin(self, text: Writing, number: int, own: Text, branches: Branches) -> None:
        """Read a prompt into a branch, up to its last token."""
        self._reader.read_prompt(text, own, self._max_new_tokens)
        branches.take(number, own.cursor, own)

    def _step(self, texts: Sequence[Writing], branches: Branches) -> list[Seen]:
        """Feed the next token of every text; the last one again where it is finished."""
        rows = branches.rows(slice(0, len(texts)), [[text.position] for text in texts])
        states, x_R1D = self._reader.run(np.array([[text.last] for text in texts]), rows.positions_RT, rows)
        (logits_R1V,) = self._target.on_host(self._target.logits(x_R1D))
        return [
            Seen({layer: x_R1D[number] for layer, x_R1D in states.items()}, logits_R1V[number])
            for number in range(len(texts))
        ]
