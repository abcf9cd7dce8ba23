"""What every back end offers: a decoder's layers, heads and KV caches on one device.

Targets and draft models know sequences, windows and branches but no devices; a back end knows segments of layers but no
methods. Hidden states cross as arrays of the back end's own library (`runtime.arrays`); ids, positions and masks are
numpy's, on the host. Weights, keys and values stay on the device.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Array, concatenated, inference
from runtime.backends.sequences import BranchCaches, Segment, Text, WindowAndBranches
from runtime.models.config import ModelConfig
from runtime.wire.channel import Block

Head = Callable[[Array], Array]
"""Logits [..., V] of normalised hidden states [..., D]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """What a back end prepares for in a sequence.

    `num_slots` are the slots of its text at the end, the last window included; `least_slots` those at its beginning;
    `num_prompt` those of its prompt. `rows` are numbers of rows in one call after the prompt, over the layers of
    `segments`; the prompt's calls run over `prompt_segments`; both also keep the hidden states after the layers of
    `states`. A call over branches has `least_branches` (None: always the most) to `num_branches`.
    """

    num_slots: int
    num_prompt: int
    rows: tuple[int, ...]
    segments: tuple[Segment, ...]
    prompt_segments: tuple[Segment, ...]
    states: tuple[int, ...] = ()
    num_branches: int = 0
    least_branches: int | None = None
    least_slots: int = 0


def cut_at_states(plan: Preparation) -> Preparation:
    """Return what a back end prepares for whose calls have the hidden states after their last layer alone."""

    def cut(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return segments_between(*(stop for _, stop in segments), *plan.states) if segments and plan.states else segments

    return replace(plan, segments=cut(plan.segments), prompt_segments=cut(plan.prompt_segments), states=())


def segments_between(*stops: int) -> tuple[Segment, ...]:
    """Return the segments of all layers up to the last stop, cut at the others."""
    return tuple(pairwise(sorted({0, *stops})))


class Backend(ABC):
    """A decoder on a device."""

    config: ModelConfig
    dtype: Any
    """Type of hidden states that are sent, of the back end's own library."""
    device: Any
    """Device of its tensors; None for arrays of numpy."""
    has_readable_cache: bool = False
    """Whether torch modules may read the KV cache, as streams do."""
    has_layouts: bool = False
    """Whether a call pays for a memory layout wherever the one before it, of the same layers, had another size."""
    self_test_chunks: tuple[tuple[int, ...], ...]
    """Ways to read the same text that `runtime.backends.self_test` compares: the rows of each call."""
    self_test_fills: tuple[int, ...] = (250,)
    """Slots that it fills first, so that its rows reach from one size into the next."""
    most_branched_positions: int | None = None
    """Positions up to which branches of other lengths may share calls, each with the bits it has alone (None: any).
    After them the order of sums follows from the longest branch, and `rows_are_alike` at one place is no proof."""

    @property
    def least_rows(self) -> int:
        """Rows that calls are padded to, so that a row has the same bits in all of them; 1 if that needs no padding."""
        return 1

    @abstractmethod
    def new_text(self) -> Text:
        """Return the memory of a text: a sequence with its KV cache."""

    @abstractmethod
    def new_branches(self, num_branches: int) -> BranchCaches:
        """Return the memory of branches of a text, in place of those before."""

    def prepare(self, plan: Preparation) -> None:  # noqa: B027  there may be nothing to prepare
        """Compile and allocate what a sequence needs, so that nothing is compiled while it is decoded."""

    @abstractmethod
    def embedding(self, ids: NDArray[np.int64]) -> Array:
        """Return the hidden states that enter the first layer, [..., D], of token ids [...]."""

    @inference
    def run_layers(
        self,
        x_BTD: Array,
        start: int,
        stop: int,
        *,
        positions: NDArray[np.int64],
        mask: NDArray[np.float32] | None = None,
        cache: Any,
    ) -> Array:
        """Run layers `start` + 1 to `stop`, and return the hidden states [B, T, D].

        `positions` are rotary ones, [T] or [B, T]. `mask` is additive [T, cursor + T]; None lets every row of a text
        see all before it. `cache` is a text, or what `Branches.rows` or `Branches.after_window` returned; its cursor
        does not move. Raises `LaneError` where a text has too few KV positions.
        """
        segment = start, stop
        if start == stop:
            return x_BTD
        if not isinstance(cache, WindowAndBranches):
            return self._run_rows(x_BTD, segment, positions, mask, cache)
        count, text = cache.num_window, cache.text
        window = self._run_rows(x_BTD[:, :count], segment, positions[:count], None, text)
        cache.branches.copy(text, slice(start, stop), text.cursor, text.cursor + count)
        after = self._run_rows(x_BTD[0, count:, None], segment, positions[count:, None], None, cache.rows)
        return concatenated([window, after.swapaxes(0, 1)], axis=1)

    def run_keeping(
        self,
        x_BTD: Array,
        start: int,
        stop: int,
        states: Collection[int],
        *,
        positions: NDArray[np.int64],
        mask: NDArray[np.float32] | None = None,
        cache: Any,
    ) -> tuple[Array, dict[int, Array]]:
        """Run layers as `run_layers` does for a text or for branches, and keep the hidden states after some of them.

        Returns the last states [B, T, D], and by layer those that `states` names up to `stop`.
        """
        kept = {}
        for layer in sorted({stop, *(layer for layer in states if start < layer < stop)}):
            x_BTD = self.run_layers(x_BTD, start, layer, positions=positions, mask=mask, cache=cache)
            start = layer
            if layer in states:
                kept[layer] = x_BTD
        return x_BTD, kept

    @abstractmethod
    def _run_rows(self, x_BTD: Array, segment: Segment, positions: Any, mask: Any, cache: Any) -> Array:
        """Run rows of a text, in as many calls as needed, or of branches."""

    @abstractmethod
    def normalise(self, x: Array) -> Array:
        """Apply the final norm alone."""

    @abstractmethod
    def logits(self, x_BTD: Array) -> Array:
        """Apply the final norm and `lm_head`: logits [B, T, V]."""

    def head(self, rows_VD: Array) -> Head | None:  # noqa: ARG002
        """Return a head of other rows than the decoder's own, for exits and drafts; None leaves it to torch."""
        return None

    def prompt_head(self, rows_ED: Array) -> Head | None:  # noqa: ARG002
        """Return a head of the few rows that a prompt adds; None leaves it to torch."""
        return None

    def product(self, weight_OI: Array) -> Head | None:  # noqa: ARG002
        """Return products with a draft's own matrix, in the type of arithmetic; None leaves them to torch."""
        return None

    @abstractmethod
    def adapter(self, weights: Any) -> Head:
        """Return an exit's adapter; `weights` are a module of torch, or arrays by name where there is no torch."""

    @abstractmethod
    def features(self, hidden_TED: Array, *, is_raw: bool) -> Array:
        """Return hidden states of E layers for a draft, [T, E * D]: each layer's at unit scale, unless `is_raw`."""

    @abstractmethod
    def array(self, block: Block) -> Array:
        """Return hidden states that came from another lane as an array of the back end."""

    def on_host(self, *arrays: Array) -> tuple[Array, ...]:
        """Return arrays of the device in memory of the host."""
        return arrays

    def wait(self) -> None:  # noqa: B027  only devices that work on their own have to be waited for
        """Wait until everything asked for is done."""


_PREFILL_ROWS = 512
"""Prompt rows per forward: enough to be bound by arithmetic, few enough for little memory."""


def prefill_pieces(num_rows: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of the pieces that a prompt is read in."""
    for start in range(0, num_rows, _PREFILL_ROWS):
        yield start, min(start + _PREFILL_ROWS, num_rows)


class TreeRows(NamedTuple):
    """Depths [T] of a drafted tree's rows, the last committed token first, and the additive mask among them [T, T].

    A node's keys lie in slots of the tree's order, not where they would in the text, so sums pair up otherwise than in
    plain decoding: alone of all windows, trees are not exact to the last bit (`benchmarks/exactness.py` counts).
    """

    depths: NDArray[np.int64]
    block: NDArray[np.float32]

    def mask(self, context: int) -> NDArray[np.float32]:
        """Return the mask [T, context + T] of these rows after a text of `context` slots."""
        return np.concatenate([np.zeros((len(self.block), context), np.float32), self.block], axis=1)


@lru_cache(maxsize=64)
def tree_rows(parents: tuple[int, ...]) -> TreeRows:
    """Return the rows of a tree, given its `Window.parents`."""
    num_rows = len(parents) + 1
    sees_TT = np.eye(num_rows, dtype=bool)
    depths = [0]
    for row, parent in enumerate(parents, 1):
        sees_TT[row] |= sees_TT[parent + 1]
        depths.append(depths[parent + 1] + 1)
    return TreeRows(np.array(depths), np.where(sees_TT, np.float32(0), np.float32(-math.inf)))
