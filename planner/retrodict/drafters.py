"""What drafters of a public measurement cost, and what the target accepts of them where nobody says.

A head for multi-token prediction (mtp, eagle) runs one layer and an output head for every token; a draft model runs
whole; a block drafter runs a few layers once for a whole window; a lookup costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from decoding.errors import PlanError
from hwprofiles.model_shape import ModelShape, model_shape
from hwprofiles.models.head_shapes import BLOCK_LAYERS, EAGLE_VOCABULARY
from hwprofiles.weights.formats import stored_weights, weights_named
from planner.retrodict.cases import CaseDrafter
from sim.derived.assumption import Assumption
from sim.derived.device_speed import KERNELS_OF_HEAD, KERNELS_PER_LAYER
from sim.derived.roofline import StoredModel

Kind = Literal["mtp", "eagle", "draft", "block", "lookup"]
_KINDS: Final[Mapping[Kind, re.Pattern[str]]] = {
    "mtp": re.compile(r"mtp|nextn|multi.?token"),
    "eagle": re.compile(r"eagle"),
    "block": re.compile(r"d(flash|spark)|block|diffusion"),
    "lookup": re.compile(r"lookup|n-?gram|suffix"),
    "draft": re.compile(r"draft|model|speculative"),
}


def _rate(value: float, span: tuple[float, float], source: str) -> Assumption:
    return Assumption.of("acceptance.rate", value, "derived", source, span=span)


RATES: Final[Mapping[Kind, Assumption]] = {
    "mtp": _rate(
        0.84, (0.70, 0.90), "sweeps of Qwen3.8-27B on an RTX 5090 (sudoingX/qwen38-mtp): .89, .79, .73, .65 of 1 to 4"
    ),
    "eagle": _rate(0.75, (0.60, 0.87), "EAGLE-3's papers: 3 to 4 tokens a round in chat, 5 and more in code"),
    "draft": _rate(0.72, (0.50, 0.87), "llama.cpp#3649 (.80 of 5, 7B), unslothai#224 (.73 of 2, 32B), ours (.60)"),
    "block": _rate(0.80, (0.60, 0.90), "mlx-dspark#8 on an M5 Max: 2.49 tokens a round with 2 drafted, 3.38 with more"),
    "lookup": _rate(0.45, (0.10, 0.80), "depends on the text: nothing in prose, nearly all in edits"),
}
"""How often a token is accepted where those before it are: of greedy texts, in public measurements that were known
before (so what these are asked of again is in-sample)."""


class Draft(NamedTuple):
    """What drafting a window takes, by its parts: each step reads so many bytes in so many kernels.

    Attributes:
        kind: of drafter.
        step_bytes: of one step, on all devices together.
        kernels: of one step.
        num_layers: of one step, each of which has two all-reduces where devices share it.
        is_once: whether one step drafts the whole window.
    """

    kind: Kind
    step_bytes: float
    kernels: int
    num_layers: int
    is_once: bool

    def num_steps(self, drafted: int) -> int:
        """Return steps for a window."""
        return (1 if self.is_once else drafted) if self.kind != "lookup" else 0


@dataclass(frozen=True, slots=True)
class RoundTokens:
    """Tokens that a round brings, and their relative error."""

    tokens: float
    error: float


def draft_of(drafter: CaseDrafter, target: StoredModel) -> Draft:
    """Return what a case's drafter takes.

    Raises:
        PlanError: nobody knows what such a drafter computes, or a draft model is not named.
        ModelError, ConfigError: its shape or weights are not known.
    """
    kind = next((kind for kind, known in _KINDS.items() if known.search(drafter.kind.lower())), None)
    if kind is None:
        raise PlanError(f"nobody knows what a drafter of kind {drafter.kind!r} takes; kinds are {', '.join(_KINDS)}")
    shape, weights = target.shape, weights_named(drafter.weights) if drafter.weights else target.weights
    layer, head = shape.layer_weight_bytes(weights), shape.head_bytes(weights)
    if kind == "lookup":
        return Draft(kind, 0.0, 0, 0, is_once=True)
    if kind == "draft":
        if drafter.shape is None:
            raise PlanError("the case names no draft model")
        small = model_shape(drafter.shape)
        num_bytes = small.num_layers * small.layer_weight_bytes(weights) + small.head_bytes(weights)
        kernels = small.num_layers * KERNELS_PER_LAYER + KERNELS_OF_HEAD
        return Draft(kind, num_bytes, kernels, small.num_layers, is_once=False)
    if kind == "block":
        num_bytes = BLOCK_LAYERS * _dense_layer_bytes(shape, weights) + head
        kernels = BLOCK_LAYERS * KERNELS_PER_LAYER + KERNELS_OF_HEAD
        return Draft(kind, num_bytes, kernels, BLOCK_LAYERS, is_once=True)
    # both project two states into one before their layer
    joined = 2 * shape.hidden_size**2 * stored_weights(weights).bits / 8
    if kind == "eagle":
        layer, head = _dense_layer_bytes(shape, weights), head * min(1.0, EAGLE_VOCABULARY / shape.vocab_size)
    return Draft(kind, layer + joined + head, KERNELS_PER_LAYER + KERNELS_OF_HEAD + 2, 1, is_once=False)


def accepted(draft: Draft, drafted: int, share: float | None) -> RoundTokens:
    """Return the tokens of a round by the share that was accepted, else by what is usual of such a drafter."""
    if share is not None:
        return RoundTokens(1 + share * drafted, _SHARE_ERROR)
    rate = RATES[draft.kind]
    low, value, high = (tokens_of_rate(one, drafted) for one in (rate.low, rate.value, rate.high))
    return RoundTokens(value, (high - low) / 2 / value)


def tokens_of_rate(rate: float, drafted: int) -> float:
    """Return tokens of a round where each drafted one is accepted so often, if those before it are."""
    return sum(rate**place for place in range(drafted + 1))


_SHARE_ERROR: Final = 0.03
"""A share is told to a point or two, of the texts that the speed is of."""


def _dense_layer_bytes(shape: ModelShape, weights: str) -> float:
    """Bytes of a layer as drafters have it: what every token reads of the target's."""
    return shape.layer_weight_bytes(weights, 1)
