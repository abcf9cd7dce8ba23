"""The sizes of streams in files; a separate module, since code that computes must not import pydantic."""

from runtime.storage.weight_folder import Count, Strict, Width


class StreamConfig(Strict):
    """Sizes of streams: tokens guessed after a row's next token, layers below the streams, rank of low-rank changes."""

    num_streams: Count
    start_layer: int
    rank: Width
