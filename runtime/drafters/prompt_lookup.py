"""Prompt lookup (LLMA, arXiv 2304.04487; Saxena 2023): drafts what followed the same n-gram earlier in the sequence."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from decoding.messages import Window
from decoding.schedule import Schedule
from runtime.arrays import Array
from runtime.drafters.window_drafter import Steps, WindowDrafter
from runtime.storage.weight_folder import Strict, read_config
from runtime.wire.measurement import Measurement

PROMPT_LOOKUP_KIND: Final = "mirrorsd_prompt_lookup"
NumTokens = Annotated[int, Field(ge=1, le=16)]


class NgramIndex:
    """A growing sequence, the n-gram at whose end is looked up in constant time: the longest one, last occurrence."""

    def __init__(self, *, min_ngram: int, max_ngram: int) -> None:
        """Args: the shortest and the longest n-gram to look up, 1 <= min <= max."""
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._ids: list[int] = []
        self._followed_at: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the sequence."""
        for token in tokens:
            end = len(self._ids)
            for size in self._sizes:
                if size <= end:
                    self._followed_at[tuple(self._ids[end - size :])] = end
            self._ids.append(token)

    def continuation(self, num_tokens: int) -> tuple[int, ...]:
        """Return `num_tokens` tokens after the last occurrence, continued periodically; none without an occurrence."""
        for size in self._sizes:
            start = self._followed_at.get(tuple(self._ids[-size:])) if size <= len(self._ids) else None
            if start is not None:
                found = self._ids[start : start + num_tokens]
                period = len(self._ids) - start
                while len(found) < num_tokens:
                    found.append(found[len(found) - period])
                return tuple(found)
        return ()


class PromptLookupDrafter(WindowDrafter):
    """A drafter without weights: a window is a chain or empty, and a rollout is one step of one row."""

    methods = ("prompt_lookup",)

    def __init__(self, *, min_ngram: int, max_ngram: int) -> None:
        self._min_ngram, self._max_ngram = min_ngram, max_ngram
        self._num_tokens = 0
        self._index = self.index()

    def index(self) -> NgramIndex:
        """Return an empty index with the settings of this drafter."""
        return NgramIndex(min_ngram=self._min_ngram, max_ngram=self._max_ngram)

    def prefill(self, prompt: Sequence[int], *, schedule: Schedule, **_: Any) -> None:
        """See `WindowDrafter`."""
        self._num_tokens = schedule.num_speculative_tokens
        self._index = self.index()
        self._index.extend(prompt)

    def rollout(self, committed: Sequence[int] = (), features_TE: Array | None = None) -> Steps:  # noqa: ARG002
        """See `WindowDrafter`."""
        self._index.extend(committed)
        window = Window(self._index.continuation(self._num_tokens))
        yield 1
        return window

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """Append `rows` tokens to a random text of `context` tokens and search it; see `WindowDrafter`."""
        rows, index = measurement.rows, self.index()
        index.extend(np.random.default_rng(0).integers(100, size=measurement.context).tolist())
        tokens = np.random.default_rng(0).integers(100, size=rows).tolist()

        def run() -> None:
            index.extend(tokens)
            index.continuation(rows)

        return run


class PromptLookupConfig(Strict):
    """`config.json` of prompt lookup: the lengths of the shortest and the longest n-gram to look up."""

    speculators_model_type: Literal["mirrorsd_prompt_lookup"] = PROMPT_LOOKUP_KIND
    min_ngram: NumTokens
    max_ngram: NumTokens

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram is {self.min_ngram}, more than max_ngram {self.max_ngram}")
        return self


def load_prompt_lookup(folder: Path) -> PromptLookupDrafter:
    """Return the drafter of a folder."""
    config = read_config(folder, PromptLookupConfig, "prompt lookup comes with one")
    return PromptLookupDrafter(min_ngram=config.min_ngram, max_ngram=config.max_ngram)
