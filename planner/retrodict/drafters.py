"""What drafters of a public measurement cost, and their acceptance where the source does not give it.

A head for multi-token prediction (mtp, eagle) runs one layer and an `lm_head` for every token; a draft model runs
whole; a target that drafts for itself runs some of its layers; a block drafter runs a few layers once for a whole
window, Medusa's heads run once too; a lookup costs nothing. What people call them is in `drafter-kinds.csv`.
"""

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import TypeAdapter

from costs.cost_model import Part
from costs.round_plan import DRAFT_STEP, LAYER, LM_HEAD
from decoding.errors import PlanError, shown, unknown
from hwprofiles.engines import head_weights, weights_for
from hwprofiles.model_shape import model_shape
from hwprofiles.models.head_shapes import IN_ONE_PASS, head_shape
from planner.published.round_tokens import RoundTokens, tokens_in_parallel, tokens_of_rate
from planner.published.usual_rates import Kind, usual_rate
from planner.retrodict.cases import CaseDrafter
from sim.derived.roofline import StoredModel

Flow = Literal["", "once", "parallel"]
"""How a window is drafted: token by token, in one step, or token by token while the target verifies."""
_KINDS_FILE: Final = Path(__file__).with_name("drafter-kinds.csv")
TREE_ROWS: Final = 64
"""Nodes of the trees that heads were published with, all of which are verified (arXiv 2401.10774 and 2402.05109)."""
_OF_CHAINS: Final = "vllm"
"""The engine that verifies a chain of the heads' best tokens; TensorRT-LLM, which is priced as it is, has trees."""
_HEADS: Final = Part("heads")


class _Called(NamedTuple):
    """What people call a kind of drafter, as a pattern; its shape, how it drafts, and its share of a target's layers.

    `name` is the usual one; `head` that by which `hwprofiles.models.head_shapes` knows the shape, and empty where it is
    the target's or told.
    """

    name: str
    words: str
    kind: Kind
    head: str = ""
    flow: Flow = ""
    layers: float = 1.0


@cache
def _kinds() -> tuple[_Called, ...]:
    """Return all kinds; the first whose words a case uses is meant."""
    with _KINDS_FILE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    told = TypeAdapter(tuple[_Called, ...])
    names = ("name", "called", "kind", "head", "flow")
    return told.validate_python([(*(one[name] for name in names), one["layers"] or 1.0) for one in lines])


class Draft(NamedTuple):
    """How a window is drafted.

    Attributes:
        kind: of drafter.
        model: of which a step runs some layers and the `lm_head`.
        num_layers: of one step.
        is_once: whether one step drafts the whole window.
        is_parallel: whether it runs while the target verifies.
    """

    kind: Kind
    model: StoredModel
    num_layers: int
    is_once: bool
    is_parallel: bool = False

    @property
    def step(self) -> Mapping[Part, int]:
        """What a step calls: a target that drafts for itself, some of its layers."""
        if self.kind == "self":
            return {LAYER: self.num_layers, LM_HEAD: 1}
        return {_HEADS if self.model.head in IN_ONE_PASS else DRAFT_STEP: 1}

    @property
    def step_bytes(self) -> float:
        """What one step reads of weights, on all devices together."""
        return sum(count * self.model.shared_work(part.kind, 1).num_bytes for part, count in self.step.items())

    def step_rows(self, drafted: int, top_k: int = 1) -> tuple[int, ...]:
        """Return the rows of every step for a window, or for so many levels of a tree of which each keeps `top_k`.

        One step that drafts all of it has a whole window's, and Medusa's heads, which read the last state alone, one. A
        tree's later steps read every token that the level above kept, as `costs.round_plan.tree_shape` has it.
        """
        if self.kind == "lookup":
            return ()
        if self.is_once:
            return (1 if self.kind == "heads" else drafted,)
        return (1,) + (top_k,) * (drafted - 1)

    def num_steps(self, drafted: int) -> int:
        """Return steps for a window."""
        return len(self.step_rows(drafted))

    def num_rows(self, drafted: int, engine: str) -> int:
        """Return the rows of a verification by an engine: a window and the token before it, or the nodes of a tree."""
        is_tree = self.kind == "heads" and _OF_CHAINS not in engine.lower()
        return max(TREE_ROWS, drafted + 1) if is_tree else drafted + 1


def _called(drafter: CaseDrafter) -> _Called | None:
    """Return the kind that a drafter is called: a draft model where a shape is told under a name that nobody knows."""
    unnamed = _Called("draft", "", "draft") if drafter.shape else None
    return next((one for one in _kinds() if re.search(one.words, drafter.kind.lower())), unnamed)


def drafts_in_parallel(drafter: CaseDrafter) -> bool:
    """Return whether a drafter runs while the target verifies, as is told of it or of its kind."""
    called = _called(drafter)
    return drafter.parallel or (called is not None and called.flow == "parallel")


def draft_of(drafter: CaseDrafter, target: StoredModel, engine: str = "") -> Draft:
    """Return what a case's drafter takes in an engine.

    Raises:
        PlanError: nobody knows what such a drafter computes, or a draft model is not named.
        ModelError, ConfigError: its shape or weights are not known.
    """
    called = _called(drafter)
    if called is None:
        known = unknown("drafter", drafter.kind, [one.name for one in _kinds()])
        raise PlanError(f"nobody knows what a drafter of kind {shown(drafter.kind)} takes: {known}")
    kind, is_once, is_parallel = called.kind, called.flow == "once", drafts_in_parallel(drafter)
    shape, head = target.shape, called.head or kind
    if called.head:
        shape = head_shape(head, target.shape)
    elif kind == "draft":
        if drafter.shape is None:
            raise PlanError("the case names no draft model")
        shape = model_shape(drafter.shape)
    usual = head_weights(head, shape, target.weights)
    weights = weights_for(engine, drafter.weights, drafter.shape, shape.published_in) or usual
    model = StoredModel(shape=shape, weights=weights, head=None if kind == "draft" else head)
    num_layers = max(1, round(called.layers * shape.num_layers))
    return Draft(kind, model, num_layers, is_once, is_parallel)


def accepted(draft: Draft, drafted: int, share: float | None, *, is_parallel: bool = False) -> RoundTokens:
    """Return the tokens of a round by the accepted share, else by the default of such a drafter."""
    if share is not None:
        return RoundTokens(1 + share * drafted, _SHARE_ERROR)
    rate = usual_rate(draft.kind, is_single=drafted == 1)
    of_rate = tokens_in_parallel if is_parallel else tokens_of_rate
    low, value, high = (of_rate(one, drafted) for one in (rate.low, rate.value, rate.high))
    return RoundTokens(value, (high - low) / 2 / value)


_SHARE_ERROR: Final = 0.03
"""A share is told to a point or two, of the texts that the speed is of."""
