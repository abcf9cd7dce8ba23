"""How far an acceptance record reaches: how many texts are written of each prompt, and what is recorded of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Final

from decoding.errors import RecordError
from decoding.validation import require_whole
from runtime.verification.rules import GREEDY, Sampling, require_temperature, seed_of

DynamicShape = tuple[int, int]
"""Depth of a dynamic tree, and the nodes that it expands on every level."""
USUAL_TREES: Final[tuple[DynamicShape, ...]] = ((2, 4), (3, 4), (5, 4), (5, 8))
"""Shallow trees for devices where every step of a head counts, wide ones for the others."""


def usual_exits(num_layers: int, feature_layers: Sequence[int]) -> tuple[int, ...]:
    """Return the layer of an untrained exit: at half depth, and not before layers whose states the draft reads.

    A target of one layer has none.
    """
    return (min(max(num_layers // 2, *feature_layers, 1), num_layers - 1),) if num_layers > 1 else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """How far a record reaches.

    Attributes:
        exit_layers: counted from 1; a layer without an adapter is read by the plain logit lens. None for those that
            have trained adapters, or the usual exit if none has.
        num_alternatives: the draft's own ids per position, its drafted token included.
        num_exit_candidates: ids per position and exit, best first: one more than the roots per row that can be.
        trees: depth and top_k of every dynamic tree to record; static trees have a shape of their own.
        temperature: at which the target's texts are sampled; 0 for greedy ones, of which there is one for each prompt.
        seed: of a prompt's first text; the others have the next ones.
        enough: asked before prompts, but for the first ones, whether to end the record without them; called with the
            seconds that they would take.
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
        """Raise `RecordError` for several greedy texts or none, and `ConfigError` for what means nothing."""
        for name in ("max_new_tokens", "max_window", "num_alternatives", "num_exit_candidates", "num_texts", "seed"):
            value = getattr(self, name)
            require_whole(name, value, None if name in ("num_texts", "seed") else 1)
            object.__setattr__(self, name, index(value))  # numpy's would not be written to a file
        require_temperature(self.temperature)
        if self.num_texts < 1 or (self.num_texts > 1 and not self.temperature):
            raise RecordError(
                f"{self.num_texts} texts of every prompt at temperature {self.temperature:g}: greedy ones are one each"
            )

    def sampling(self, prompt: Sequence[int], number: int) -> Sampling:
        """Return how the `number`th text of a prompt is sampled: as plain decoding does it."""
        own = seed_of(self.seed + number, prompt)
        return Sampling("match", self.temperature, own) if self.temperature else GREEDY
