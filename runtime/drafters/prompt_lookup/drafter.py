"""Finds windows in the text so far (LLMA, arXiv 2304.04487; prompt lookup decoding, Saxena 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from decoding.messages import Window
from decoding.schedule import Schedule
from runtime.arrays import Array
from runtime.drafters.prompt_lookup.ngrams import NgramIndex
from runtime.drafters.window_drafter import Steps, WindowDrafter
from runtime.verification.rules import GREEDY, Sampling
from runtime.wire.measurement import Measurement


class PromptLookupDrafter(WindowDrafter):
    """Without weights: a window is a chain, or empty.

    Every rollout is one step of one row, whatever it finds.
    """

    methods = ("prompt_lookup",)

    def __init__(self, *, min_ngram: int, max_ngram: int) -> None:
        self._min_ngram, self._max_ngram = min_ngram, max_ngram
        self._num_tokens = 0
        self._index = self.index()

    def index(self) -> NgramIndex:
        """An empty text to search as this drafter does."""
        return NgramIndex(min_ngram=self._min_ngram, max_ngram=self._max_ngram)

    def prefill(
        self,
        prompt: Sequence[int],
        *,
        schedule: Schedule,
        capacity: int,  # noqa: ARG002
        sampling: Sampling = GREEDY,  # noqa: ARG002
        features_TE: Array | None = None,  # noqa: ARG002
    ) -> None:
        """Start a sequence; see `WindowDrafter`."""
        self._num_tokens = schedule.num_speculative_tokens
        self._index = self.index()
        self._index.extend(prompt)

    def rollout(self, committed: Sequence[int] = (), features_TE: Array | None = None) -> Steps:  # noqa: ARG002
        """What followed the last tokens before; see `WindowDrafter`."""
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
