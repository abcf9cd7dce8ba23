"""The target's own texts of prompts, greedy or sampled, with the hidden states it had on the way.

A text is that of plain decoding on the same back end to the last bit, with the draws of its seed. Texts of several
prompts are written side by side, each a branch of its own (`runtime.backends.kv_memory.BranchCaches`); where a back
end's rows are not alike, which is asked whenever a text begins or memory grows, each is written alone. So is a text
that is longer than branches that compute alike (`Backend.most_branched_positions`).
Shapes: legend of `runtime.models.decoder`; P is the prompt's length, N the text's, R the number of texts.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.messages import NO_WINDOW
from decoding.sequence import DecodedSequence
from runtime.arrays import Array, concatenated, inference, wide
from runtime.backends.backend import Backend, Preparation, prefill_pieces, segments_between
from runtime.backends.kv_memory import BranchCaches, SequenceCache
from runtime.models.vocabulary import ranked_ids
from runtime.verification.rules import GREEDY, Sampling, decide, probabilities

_MOST_ROWS: Final = 8
"""Most texts of a step; beyond that each row costs nearly what it costs alone."""
_MOST_TEXTS: Final = 16
"""Most texts of a group: a step has rows for others while the longest text goes on."""
_MOST_BYTES: Final = 1_000_000_000
"""Most bytes of keys, values, states and probabilities of a group."""
_BUFFERS: Final = 3
"""KV positions that memory has for one that a text needs: sizes double, and what was outgrown stays."""


class TargetText(NamedTuple):
    """A text and the target's states, margins and probabilities while writing it.

    Attributes:
        tokens: N new ids; ends with EOS or at the length asked for.
        states: by layer, hidden states after it, [P + N - 1, D]: the last token is never read.
        margins: best logit over the second best at every token, [N]. Near zero, other arithmetic may choose otherwise.
        probabilities: the target's at every token, each [V]; none of a greedy text.
    """

    tokens: list[int]
    states: dict[int, Array]
    margins: list[float]
    probabilities: list[NDArray[np.float32]]


class WantedText(NamedTuple):
    """A text to write: after which prompt, and how its tokens are chosen."""

    prompt: Sequence[int]
    sampling: Sampling = GREEDY


class _Seen(NamedTuple):
    """What the target made of a token of a text: states by wanted layer, [1, D], and logits after it."""

    states: dict[int, Array]
    logits_1V: Array

    def equals(self, other: "_Seen") -> bool:
        """Return whether all numbers are the same to the last bit."""
        pairs = [(rows, other.states[layer]) for layer, rows in self.states.items()]
        return all(bool((one == another).all()) for one, another in [*pairs, (self.logits_1V, other.logits_1V)])


class _Writing:
    """A text under way after its prompt; `last` is the token to feed next at `position`, or the one fed last."""

    def __init__(self, wanted: WantedText, sequence: DecodedSequence) -> None:
        self.prompt, self._sampling, self._sequence = wanted.prompt, wanted.sampling, sequence
        self.states = list[dict[int, Array]]()
        self._margins, self._chosen_from = list[float](), list[NDArray[np.float32]]()
        self.last, self.position = self.prompt[-1], len(self.prompt) - 1

    @property
    def unfinished(self) -> bool:
        return self._sequence.unfinished

    def go_on(self, seen: _Seen) -> None:
        """Append the token that follows the row read last, which was `last`."""
        self.states.append(seen.states)
        verdict = decide(seen.logits_1V, NO_WINDOW, self._sampling, self.position + 1)
        if not self._sampling.is_greedy:
            self._chosen_from.append(probabilities(seen.logits_1V[0], self._sampling.temperature).astype(np.float32))
        logits_1V = wide(seen.logits_1V)
        best, second = logits_1V[0, ranked_ids(logits_1V, 2)[0]].tolist()
        self._margins.append(best - second)
        self._sequence.commit(NO_WINDOW, verdict)
        if self.unfinished:
            self.last, self.position = verdict.next_token, self.position + 1

    def result(self, target: Backend) -> TargetText:
        """Return the finished text."""
        states = {
            layer: target.on_host(concatenated([rows[layer] for rows in self.states]))[0] for layer in self.states[0]
        }
        return TargetText(self._sequence.tokens, states, self._margins, self._chosen_from)


class TextWriter:
    """Writes texts by plain decoding, of one length and with the states after the same layers.

    Layers are counted from 1; the states after the last one are those before the norm.
    """

    def __init__(self, target: Backend, *, max_new_tokens: int, layers: Sequence[int]) -> None:
        self._target, self._max_new_tokens, self._layers = target, max_new_tokens, tuple(sorted(set(layers)))
        self.rows_are_alike = True
        self.next_is_written = False
        """Whether the next text was finished while those before it were written."""

    def write(self, wanted: Sequence[WantedText]) -> Iterator[TargetText]:
        """Yield the texts in their order, which fit in the target's positions; each as soon as it is finished."""
        for group in self.groups(wanted):
            left = deque(group)
            for text in self._side_by_side(group):
                left.popleft()
                yield text
            yield from map(self.alone, left)

    def alone(self, wanted: WantedText) -> TargetText:
        """Return one text."""
        writing, place = self._begin(wanted), self._target.new_text()
        self._prepare(len(wanted.prompt))
        self._read_prompt(writing, place)
        while writing.unfinished:
            writing.go_on(self._read_next(writing, place))
        return writing.result(self._target)

    def groups(self, wanted: Sequence[WantedText]) -> Iterator[list[WantedText]]:
        """Cut into texts that follow each other, fit in memory together and compute alike."""
        group: list[WantedText] = []
        for text in wanted:
            if group and not self._fit_together([*group, text]):
                yield group
                group = []
            group.append(text)
        if group:
            yield group

    def _fit_together(self, group: Sequence[WantedText]) -> bool:
        most = self._target.most_branched_positions
        longest = max(len(text.prompt) for text in group) + self._max_new_tokens - 1
        return len(group) <= _MOST_TEXTS and self.num_bytes(group) <= _MOST_BYTES and (most is None or longest <= most)

    def num_bytes(self, group: Sequence[WantedText]) -> int:
        """Return the most bytes that a group holds; every text has room for the longest."""
        config, size = self._target.config, self._target.dtype.itemsize
        keys = 2 * config.num_layers * config.num_kv_heads * config.head_dim * _BUFFERS
        states = len(self._layers) * config.hidden_size * 4
        num_positions = max(len(text.prompt) for text in group) + self._max_new_tokens
        num_sampled = sum(not text.sampling.is_greedy for text in group)
        distributions = num_sampled * 4 * config.vocab_size * self._max_new_tokens
        rows = min(len(group), _MOST_ROWS)
        return int(num_positions * (rows * keys * size + len(group) * states)) + distributions

    def _side_by_side(self, group: Sequence[WantedText]) -> Iterator[TargetText]:
        """Yield the texts of a group; none of one text, and none from where rows turn out not to be batch-invariant."""
        if len(group) == 1 or not self.rows_are_alike:
            return
        writings = deque(map(self._begin, group))
        texts, waiting = list(islice(writings, _MOST_ROWS)), deque(islice(writings, _MOST_ROWS, None))
        longest = max(len(text.prompt) for text in group)
        self._prepare(longest, num_texts=len(texts))
        place, branches = self._target.new_text(), self._target.new_branches(len(texts))
        branches.start(longest + self._max_new_tokens - 1)
        alone = {number: self._enter(text, number, place, branches) for number, text in enumerate(texts)}
        while any(text.unfinished for text in texts):
            size, together = branches.memory.slots.shape[-2], self._step(texts, branches)
            self.rows_are_alike = all(together[number].equals(seen) for number, seen in alone.items())
            if not self.rows_are_alike:
                return
            yield from self._finished(writings)  # not before memory that they have outgrown is known to be alike
            for text, seen in zip(texts, together, strict=True):
                if text.unfinished:
                    text.go_on(seen)
            alone = {}
            if branches.memory.slots.shape[-2] > size:
                alone = self._shortest_alone(texts, place, branches)
            for number, text in enumerate(texts):
                if waiting and not text.unfinished:
                    texts[number] = waiting.popleft()
                    alone[number] = self._enter(texts[number], number, place, branches)
        yield from self._finished(writings)

    def _finished(self, writings: deque[_Writing]) -> Iterator[TargetText]:
        """Take the finished texts from the beginning, up to one that is under way or waits."""
        while writings and not writings[0].unfinished:
            text = writings.popleft().result(self._target)
            self.next_is_written = bool(writings) and not writings[0].unfinished
            yield text

    def _shortest_alone(
        self, texts: Sequence[_Writing], place: SequenceCache, branches: BranchCaches
    ) -> dict[int, _Seen]:
        """Return what the shortest unfinished text sees next on its own: in memory of another size bits may change."""
        unfinished = [number for number, text in enumerate(texts) if text.unfinished]
        if not unfinished:
            return {}
        number = min(unfinished, key=lambda one: texts[one].position)
        length = texts[number].position
        place.start(length + 1)
        branches.give(number, 0, length, place)
        place.set_length(length)
        return {number: self._read_next(texts[number], place)}

    def _begin(self, wanted: WantedText) -> _Writing:
        ends = self._target.config.eos_token_ids
        sequence = DecodedSequence(wanted.prompt, max_new_tokens=self._max_new_tokens, eos_token_ids=ends)
        return _Writing(wanted, sequence)

    def _prepare(self, num_prompt: int, *, num_texts: int = 0) -> None:
        segments = segments_between(self._target.config.num_layers)
        self._target.prepare(
            Preparation(
                num_slots=num_prompt + self._max_new_tokens - 1,
                num_prompt=num_prompt,
                rows=(1,),
                segments=segments,
                prompt_segments=segments if num_prompt > 1 else (),
                states=tuple(self._layers),
                num_branches=num_texts,
            )
        )

    def _enter(self, text: _Writing, number: int, place: SequenceCache, branches: BranchCaches) -> _Seen:
        """Read a text's prompt, give its keys to a branch, and return what it sees next on its own."""
        self._read_prompt(text, place)
        branches.take(number, place.cursor, place)
        return self._read_next(text, place)

    def _read_prompt(self, writing: _Writing, place: SequenceCache) -> None:
        """Begin a text with all tokens of its prompt but the last."""
        place.start(len(writing.prompt) + self._max_new_tokens - 1)
        for start, stop in prefill_pieces(len(writing.prompt) - 1):
            states, _ = self._run(np.array([writing.prompt[start:stop]]), np.arange(start, stop), place)
            place.advance(stop - start)
            writing.states.append({layer: x_BTD[0] for layer, x_BTD in states.items()})

    def _read_next(self, writing: _Writing, place: SequenceCache) -> _Seen:
        [seen] = self._feed([writing], np.array([writing.position]), place)
        place.advance(1)
        return seen

    def _step(self, texts: Sequence[_Writing], branches: BranchCaches) -> list[_Seen]:
        """Feed the next token of every text; the last one again where it is finished."""
        rows = branches.rows(slice(0, len(texts)), [[text.position] for text in texts])
        return self._feed(texts, rows.positions_RT, rows)

    @inference
    def _feed(self, texts: Sequence[_Writing], positions: Any, cache: Any) -> list[_Seen]:
        states, x_R1D = self._run(np.array([[text.last] for text in texts]), positions, cache)
        (logits_R1V,) = self._target.on_host(self._target.logits(x_R1D))
        return [
            _Seen({layer: x_R1D[number] for layer, x_R1D in states.items()}, logits_R1V[number])
            for number in range(len(texts))
        ]

    def _run(self, ids_BT: NDArray[np.int64], positions: Any, cache: Any) -> tuple[dict[int, Array], Array]:
        """Return hidden states after the wanted layers and after the last one, [B, T, D] each."""
        num_layers = self._target.config.num_layers
        x_BTD, states = self._target.run_keeping(
            self._target.embedding(ids_BT), 0, num_layers, self._layers, positions=positions, cache=cache
        )
        return states, x_BTD
