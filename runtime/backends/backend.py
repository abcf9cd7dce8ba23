"""The interface of every back end: a decoder's layers, heads and KV caches on one device.

Targets and draft models know sequences, windows and branches, but no devices; a back end knows segments of layers, but
no methods. Hidden states are arrays of the back end's library (`runtime.arrays`); ids, positions and masks are numpy
arrays on the host. Weights, keys and values stay on the device.
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

from runtime.arrays import Array, inference, normalise_features
from runtime.backends.kv_memory import BranchCaches, Segment, SequenceCache
from runtime.backends.lane_device import PREFILL_ROWS
from runtime.models.config import ModelConfig
from runtime.wire.channel import Block

Head = Callable[[Array], Array]
"""From normalised hidden states [..., D] to logits [..., V]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """The calls of a sequence, for which a back end prepares.

    `num_slots` is the number of slots at the sequence's end, with the last window; `least_slots` at its beginning;
    `num_prompt` of its prompt. `rows` are the numbers of rows of calls after the prompt, over the layers of `segments`;
    calls of the prompt are over `prompt_segments`; both also return the hidden states after the layers `states`. A call
    over branches has `least_branches` (None: `num_branches`) to `num_branches` branches.
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
    """Return the plan for a back end whose calls return only their last hidden states: segments end at `states`."""

    def cut(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return segments_between(*(stop for _, stop in segments), *plan.states) if segments and plan.states else segments

    return replace(plan, segments=cut(plan.segments), prompt_segments=cut(plan.prompt_segments), states=())


def segments_between(*stops: int) -> tuple[Segment, ...]:
    """Return segments of the layers up to the largest stop, cut at the other stops."""
    return tuple(pairwise(sorted({0, *stops})))


class Backend(ABC):
    """A decoder on a device."""

    config: ModelConfig
    dtype: Any
    """The type of hidden states that lanes exchange, of the back end's library."""
    device: Any
    """The device of tensors; None for numpy arrays."""
    has_readable_cache: bool = False
    """Whether torch modules may read the KV cache, as streams do."""
    has_layouts: bool = False
    """Whether a call takes longer if the last call of the same layers had another size (a new memory layout)."""
    self_test_chunks: tuple[tuple[int, ...], ...]
    """For `runtime.backends.self_test`: ways to split the same text into calls, as rows of each call."""
    self_test_fills: tuple[int, ...] = (250,)
    """For the self-test: slots filled before its rows, so that the rows cross from one size of memory to the next."""
    most_branched_positions: int | None = None
    """Positions up to which branches of different lengths may share a call and keep their bits (None: any).
    Beyond, the longest branch of a call decides the order of sums, so a test at one position proves nothing there."""

    @property
    def least_rows(self) -> int:
        """Number of rows to which smaller calls are padded, so that a row has the same bits in any call."""
        return 1

    @abstractmethod
    def new_text(self) -> SequenceCache:
        """Return the KV cache of a new sequence."""

    @abstractmethod
    def new_branches(self, num_branches: int) -> BranchCaches:
        """Return the KV caches of a sequence's branches; those returned before become invalid."""

    def prepare(self, plan: Preparation) -> None:  # noqa: B027  some back ends have nothing to prepare
        """Compile and allocate what a sequence needs, so that nothing is compiled while it is decoded."""

    @abstractmethod
    def embedding(self, ids: NDArray[np.int64]) -> Array:
        """Return the hidden states before the first layer, [..., D], of token ids [...]."""

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

        `positions` are positions in the text, [T] or [B, T]. `mask` is additive, [T, cursor + T]; None is causal.
        `cache` is a text, whose cursor does not move, or a result of `BranchCaches.rows`. Raises `LaneError` if a text
        has too few KV positions.
        """
        return x_BTD if start == stop else self._run_rows(x_BTD, (start, stop), positions, mask, cache)

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
        """Run layers like `run_layers`, and also return the hidden states after some layers.

        Returns the last states [B, T, D], and the states after the layers `states` (up to `stop`) by layer.
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
        """Run layers over rows of a text or of branches, in as many calls as needed."""

    @abstractmethod
    def normalise(self, x: Array) -> Array:
        """Apply the final norm, without `lm_head`."""

    @abstractmethod
    def logits(self, x_BTD: Array) -> Array:
        """Apply the final norm and `lm_head`: logits [B, T, V]."""

    def head(self, rows_VD: Array) -> Head | None:  # noqa: ARG002
        """Return a head with the given output rows, for exits and drafts; None if torch has to compute it."""
        return None

    def prompt_head(self, rows_ED: Array) -> Head | None:  # noqa: ARG002
        """Return a head with the few output rows of prompt tokens; None if torch has to compute it."""
        return None

    def product(self, weight_OI: Array) -> Head | None:  # noqa: ARG002
        """Return products of rows with a draft's matrix, in the type of arithmetic; None if torch has to compute it."""
        return None

    @abstractmethod
    def adapter(self, weights: Any) -> Head:
        """Return an exit's adapter; `weights` are a torch module, or arrays by name on a back end without torch."""

    def features(self, hidden_TED: Array, *, is_raw: bool) -> Array:
        """Return hidden states of E layers for a draft, [T, E * D], each divided by its RMS unless `is_raw`."""
        if not is_raw:
            return normalise_features(hidden_TED, self.config.norm_eps)
        num_rows, num_layers, size = hidden_TED.shape
        return hidden_TED.reshape(num_rows, num_layers * size)

    @abstractmethod
    def array(self, block: Block) -> Array:
        """Return hidden states received from another lane as an array of this back end."""

    def wait(self) -> None:  # noqa: B027  only asynchronous devices have to be waited for
        """Wait until the device has done all work."""


def prefill_pieces(num_rows: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of the pieces in which a prompt is read."""
    for start in range(0, num_rows, PREFILL_ROWS):
        yield start, min(start + PREFILL_ROWS, num_rows)


class TreeRows(NamedTuple):
    """The rows of a drafted tree, the last committed token first: depths [T], and the additive mask among them [T, T].

    The keys of nodes are in the order of the tree, not of the text, so sums over keys are in another order than in
    plain decoding. Unlike chains, trees are therefore not exact to the last bit (`benchmarks/exactness.py` counts).
    """

    depths: NDArray[np.int64]
    block: NDArray[np.float32]

    def mask(self, context: int) -> NDArray[np.float32]:
        """Return the mask [T, context + T] of these rows behind a text of `context` slots."""
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
