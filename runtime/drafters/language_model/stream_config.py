"""Sizes of streams, as files have them; apart from what computes, which does without pydantic."""

from runtime.storage.weight_folder import Count, Strict, Width


class StreamConfig(Strict):
    """Sizes of streams: tokens guessed after the one that a row predicts, layers before, rank of low-rank changes."""

    num_streams: Count
    start_layer: int
    rank: Width
