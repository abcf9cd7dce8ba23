"""Sizes of speculative streams (`runtime.drafters.streams.model`), and what their folders are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from decoding.errors import ModelError

STREAM_KIND: Final = "mirrorsd_streams"
"""Of folders with streams of a target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamConfig:
    """Sizes of a decoder's streams.

    Attributes:
        num_streams: tokens guessed after the one that a row itself predicts.
        start_layer: layers of the decoder done before the streams begin.
        rank: of the low-rank changes.
    """

    num_streams: int
    start_layer: int
    rank: int

    def __post_init__(self) -> None:
        for name in ("num_streams", "start_layer", "rank"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} {getattr(self, name)} is not at least 1")
