"""The extent of an acceptance record: texts per prompt, their length, windows, candidates, exits and trees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Final

from decoding.errors import RecordError
from decoding.validation import require_whole
from runtime.verification.rules import GREEDY, Sampling, require_temperature, seed_of

DynamicShape = tuple[int, int]
"""Depth of a dynamic tree, and the number of nodes that it expands on each level."""
USUAL_TREES: Final[tuple[DynamicShape, ...]] = ((2, 4), (3, 4), (5, 4), (5, 8))
"""Default dynamic trees: shallow ones for devices on which each step of a head is expensive, wide ones for others."""


def usual_exits(num_layers: int, feature_layers: Sequence[int]) -> tuple[int, ...]:
    """Return the default layer of an untrained exit: half the depth, but not before layers whose states a draft reads.

    It is empty for a target of one layer.
    """
    return (min(max(num_layers // 2, *feature_layers, 1), num_layers - 1),) if num_layers > 1 else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """The extent of a record.

    Attributes:
        exit_layers: counted from 1; a layer without a trained adapter is read by the logit lens. None: the layers with
            trained adapters, else `usual_exits`.
        num_alternatives: the draft's candidates per position, including the drafted token.
        num_exit_candidates: candidates per position and exit, best first: one more than the most roots per row.
        trees: depth and top_k of the dynamic trees to record; static trees have a fixed shape.
        temperature: sampling temperature of the target's texts; 0: greedy, with one text per prompt.
        seed: of a prompt's first text; further texts have the following seeds.
        enough: called before each text but the first of a run, with the seconds that it may take; True ends the record.
    """

    exit_layers: tuple[int, ...] | None = None
    max_new_tokens: int = 64
    max_window: int = 8
    num_alternatives: int = 9
    num_exit_candidates: int = 17
    trees: tuple[DynamicShape, ...] = USUAL_TREES
    temperature: float = 0.0
    num_texts: int = 1
    seed: int = 0
    enough: Callable[[float], bool] = field(default=lambda _next_s: False, repr=False)

    def __post_init__(self) -> None:
        """Raise `RecordError` for no text or several greedy ones, and `ConfigError` for invalid numbers."""
        for name in ("max_new_tokens", "max_window", "num_alternatives", "num_exit_candidates", "num_texts", "seed"):
            value = getattr(self, name)
            require_whole(name, value, None if name in ("num_texts", "seed") else 1)
            object.__setattr__(self, name, index(value))  # numpy integers cannot be written as JSON
        require_temperature(self.temperature)
        if self.num_texts < 1 or (self.num_texts > 1 and not self.temperature):
            raise RecordError(
                f"{self.num_texts} texts of every prompt at temperature {self.temperature:g}: greedy ones are one each"
            )

    def sampling(self, prompt: Sequence[int], number: int) -> Sampling:
        """Return how the text `number` of a prompt is sampled: as in plain decoding."""
        own = seed_of(self.seed + number, prompt)
        return Sampling("match", self.temperature, own) if self.temperature else GREEDY
