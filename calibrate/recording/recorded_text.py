"""Writes the target's texts, greedy or sampled, and keeps the hidden states on the way.

A text equals that of plain decoding with its seed on the same back end, to the last bit. Texts of several prompts are
written side by side, each as a branch (`runtime.backends.kv_memory.BranchCaches`). If the back end turns out not to be
batch-invariant, which is tested whenever a text begins or memory grows, each text is written alone. So is a text longer
than branches that compute alike (`Backend.most_branched_positions`).

Shape legend: as in `runtime.models.decoder`; P tokens of the prompt, N of the text, R texts.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.messages import NO_WINDOW
from decoding.sequence import DecodedSequence
from runtime.arrays import Array, concatenated, inference, on_host, wide
from runtime.backends.backend import Backend, Preparation, prefill_pieces, segments_between
from runtime.backends.kv_memory import BranchCaches, SequenceCache
from runtime.models.vocabulary import ranked_ids
from runtime.verification.rules import GREEDY, Sampling, decide, probabilities

_MOST_ROWS: Final = 8
"""Most texts in one step; further rows cost nearly as much as steps of their own."""
_MOST_TEXTS: Final = 16
"""Most texts in a group: more than `_MOST_ROWS`, so that waiting texts fill rows while the longest one goes on."""
_MOST_BYTES: Final = 1_000_000_000
"""Most bytes of keys, values, states and probabilities of a group."""
_BUFFERS: Final = 3
"""Allocated KV positions per needed one: buffers double in size, and outgrown ones stay allocated."""


class TargetText(NamedTuple):
    """A text with the target's hidden states, margins and probabilities while writing it.

    Attributes:
        tokens: N new ids; the text ends with EOS or at the requested length.
        states: hidden states after each wanted layer, [P + N - 1, D]: the last token is never read.
        margins: best logit minus second best at each token, [N]. Near zero, other rounding may choose the other token.
        probabilities: the target's distribution at each token, each [V]; empty for a greedy text.
    """

    tokens: list[int]
    states: dict[int, Array]
    margins: list[float]
    probabilities: list[NDArray[np.float32]]


class WantedText(NamedTuple):
    """A text to write: its prompt's ids, and how its tokens are chosen."""

    prompt: Sequence[int]
    sampling: Sampling = GREEDY


class _Seen(NamedTuple):
    """The target's results for one token: hidden states after each wanted layer, [1, D], and logits."""

    states: dict[int, Array]
    logits_1V: Array

    def equals(self, other: "_Seen") -> bool:
        """Return whether all numbers are equal to the last bit."""
        pairs = [(rows, other.states[layer]) for layer, rows in self.states.items()]
        return all(bool((one == another).all()) for one, another in [*pairs, (self.logits_1V, other.logits_1V)])


class _Writing:
    """A text being written; `last` is the token to feed next at `position`, or the last one fed if it is finished."""

    def __init__(self, wanted: WantedText, sequence: DecodedSequence) -> None:
        self.prompt, self._sampling, self._sequence = wanted.prompt, wanted.sampling, sequence
        self.states = list[dict[int, Array]]()
        self._margins, self._chosen_from = list[float](), list[NDArray[np.float32]]()
        self.last, self.position = self.prompt[-1], len(self.prompt) - 1

    @property
    def unfinished(self) -> bool:
        return self._sequence.unfinished

    def go_on(self, seen: _Seen) -> None:
        """Append the token that the target chooses after `last`, given its results for `last`."""
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

    def result(self) -> TargetText:
        """Return the finished text."""
        states = {layer: on_host(concatenated([rows[layer] for rows in self.states])) for layer in self.states[0]}
        return TargetText(self._sequence.tokens, states, self._margins, self._chosen_from)


class TextWriter:
    """Writes texts by plain decoding, all of the same maximal length and with the states after the same layers.

    Layers are counted from 1; the states after the last layer are those before the final norm.
    """

    def __init__(self, target: Backend, *, max_new_tokens: int, layers: Sequence[int]) -> None:
        self._target, self._max_new_tokens, self._layers = target, max_new_tokens, tuple(sorted(set(layers)))
        self.rows_are_alike = True
        self.next_is_written = False
        """Whether the next text to be yielded is finished already."""

    def write(self, wanted: Sequence[WantedText]) -> Iterator[TargetText]:
        """Yield the texts in order, each as soon as it is finished; all must fit in the target's positions."""
        for group in self.groups(wanted):
            left = deque(group)
            for text in self._side_by_side(group):
                left.popleft()
                yield text
            yield from map(self.alone, left)

    def alone(self, wanted: WantedText) -> TargetText:
        """Write one text alone."""
        writing, place = self._begin(wanted), self._target.new_text()
        self._prepare(len(wanted.prompt))
        self._read_prompt(writing, place)
        while writing.unfinished:
            writing.go_on(self._read_next(writing, place))
        return writing.result()

    def groups(self, wanted: Sequence[WantedText]) -> Iterator[list[WantedText]]:
        """Cut the texts into consecutive groups that can be written side by side."""
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
        """Return the peak bytes of a group; each text has memory for the longest one."""
        config, size = self._target.config, self._target.dtype.itemsize
        keys = 2 * config.num_layers * config.num_kv_heads * config.head_dim * _BUFFERS
        states = len(self._layers) * config.hidden_size * 4
        num_positions = max(len(text.prompt) for text in group) + self._max_new_tokens
        num_sampled = sum(not text.sampling.is_greedy for text in group)
        distributions = num_sampled * 4 * config.vocab_size * self._max_new_tokens
        rows = min(len(group), _MOST_ROWS)
        return int(num_positions * (rows * keys * size + len(group) * states)) + distributions

    def _side_by_side(self, group: Sequence[WantedText]) -> Iterator[TargetText]:
        """Yield the texts of a group, written side by side; stop early if rows turn out not to be batch-invariant.

        Yields nothing for a group of one text.
        """
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
            yield from self._finished(writings)  # only after the invariance test of memory that has grown meanwhile
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
        """Remove and yield the finished texts at the front of `writings`."""
        while writings and not writings[0].unfinished:
            text = writings.popleft().result()
            self.next_is_written = bool(writings) and not writings[0].unfinished
            yield text

    def _shortest_alone(
        self, texts: Sequence[_Writing], place: SequenceCache, branches: BranchCaches
    ) -> dict[int, _Seen]:
        """Compute the next step of the shortest unfinished text alone, as memory of another size may change results.

        Returns its results by number; empty if all texts are finished.
        """
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
        """Read a text's prompt alone, copy its keys and values to a branch, and return its next step alone."""
        self._read_prompt(text, place)
        branches.take(number, place.cursor, place)
        return self._read_next(text, place)

    def _read_prompt(self, writing: _Writing, place: SequenceCache) -> None:
        """Read all tokens of a text's prompt but the last."""
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
        """Feed the next token of each text; finished texts feed their last token again."""
        rows = branches.rows(slice(0, len(texts)), [[text.position] for text in texts])
        return self._feed(texts, rows.positions_RT, rows)

    @inference
    def _feed(self, texts: Sequence[_Writing], positions: Any, cache: Any) -> list[_Seen]:
        states, x_R1D = self._run(np.array([[text.last] for text in texts]), positions, cache)
        logits_R1V = on_host(self._target.logits(x_R1D))
        return [
            _Seen({layer: x_R1D[number] for layer, x_R1D in states.items()}, logits_R1V[number])
            for number in range(len(texts))
        ]

    def _run(self, ids_BT: NDArray[np.int64], positions: Any, cache: Any) -> tuple[dict[int, Array], Array]:
        """Return the hidden states after the wanted layers, and after the last layer, each [B, T, D]."""
        num_layers = self._target.config.num_layers
        x_BTD, states = self._target.run_keeping(
            self._target.embedding(ids_BT), 0, num_layers, self._layers, positions=positions, cache=cache
        )
        return states, x_BTD
