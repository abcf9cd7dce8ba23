"""Drafters without a model in a record: the windows that they find after every prefix of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding.record import Ids, RecordedChain
from runtime.drafters.prompt_lookup.drafter import PromptLookupDrafter


class RecordedFinder(NamedTuple):
    """Prompt lookup as a user has set and called it; the digest changes with its settings."""

    name: str
    drafter: PromptLookupDrafter
    digest: str

    @property
    def chain(self) -> RecordedChain:
        """What a record calls its windows."""
        [method] = self.drafter.methods
        return RecordedChain(method=method, drafter=self.name)

    def windows(self, ids: Sequence[int], *, start: int, max_window: int) -> Ids:
        """What is found after every prefix ids[:start], ..., [N, max_window]; -1 after a window's end."""
        index = self.drafter.index()
        index.extend(ids[:start])
        windows = np.full((len(ids) - start, max_window), -1, dtype=np.int32)
        for row, token in zip(windows, ids[start:], strict=True):
            found = index.continuation(max_window)
            row[: len(found)] = found
            index.extend([token])
        return windows
