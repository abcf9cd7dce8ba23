"""Which heads, hidden units and vocabulary rows of a decoder one rank of a group holds.

Everything is dealt out in runs of neighbours, as evenly as it goes: nine heads on two ranks are not refused, but a
step then takes as long as the larger share of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from decoding.errors import ModelError
from runtime.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRange:
    """Neighbours from `start` to before `stop`."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @classmethod
    def of(cls, whole: int, rank: int, world_size: int) -> Self:
        """The share of a rank in `whole` things."""
        return cls(start=whole * rank // world_size, stop=whole * (rank + 1) // world_size)

    def times(self, size: int) -> IndexRange:
        """The rows of these things, `size` each."""
        return IndexRange(start=self.start * size, stop=self.stop * size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The parts of a decoder that one rank holds.

    Attributes:
        heads: query heads.
        kv_heads: key/value heads that these read; the same one on several ranks where there are more ranks.
        hidden: units of the MLP.
        vocabulary: rows of the output head.
    """

    heads: IndexRange
    kv_heads: IndexRange
    hidden: IndexRange
    vocabulary: IndexRange

    @classmethod
    def of(cls, config: ModelConfig, rank: int, world_size: int) -> Self:
        """The share of a rank in a model.

        Raises:
            ModelError: the model cannot be split over so many ranks.
        """
        for name in ("num_heads", "intermediate_size", "vocab_size"):
            if getattr(config, name) < world_size:
                raise ModelError(f"{name} {getattr(config, name)} cannot be split over {world_size} ranks")
        heads, kv_heads = _heads(config, rank, world_size)
        return cls(
            heads=heads,
            kv_heads=kv_heads,
            hidden=IndexRange.of(config.intermediate_size, rank, world_size),
            vocabulary=IndexRange.of(config.vocab_size, rank, world_size),
        )

    def of_config(self, config: ModelConfig) -> ModelConfig:
        """The sizes that the rank's layers and caches have."""
        return replace(
            config,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.hidden),
        )


def _heads(config: ModelConfig, rank: int, world_size: int) -> tuple[IndexRange, IndexRange]:
    """Query heads of a rank, and the key/value heads that they read."""
    num_kv, group = config.num_kv_heads, config.num_queries_per_kv
    if world_size <= num_kv:
        kv_heads = IndexRange.of(num_kv, rank, world_size)
        return kv_heads.times(group), kv_heads
    num_copies, rest = divmod(world_size, num_kv)
    if rest or num_copies > group:
        raise ModelError(
            f"num_kv_heads {num_kv} with {group} query heads each cannot be split over {world_size} ranks; "
            f"possible are 1 to {num_kv} ranks and multiples of {num_kv} up to {config.num_heads}"
        )
    kv_head, copy = divmod(rank, num_copies)
    queries = IndexRange.of(group, copy, num_copies)
    first = kv_head * group
    heads = IndexRange(start=first + queries.start, stop=first + queries.stop)
    return heads, IndexRange(start=kv_head, stop=kv_head + 1)
