"""What a drafter of a public measurement computes per round, and its default acceptance.

For every token, a head for multi-token prediction (mtp, eagle) runs one layer and an `lm_head`, a draft model all of
its layers, and a target that drafts for itself some of its layers. A block drafter runs a few layers once for a whole
window, and Medusa's heads run once too. A lookup costs nothing. `drafter-kinds.csv` has the names that sources use.
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
"""How a window is drafted: token by token (""), in one step, or token by token while the target verifies."""
_KINDS_FILE: Final = Path(__file__).with_name("drafter-kinds.csv")
TREE_ROWS: Final = 64
"""Verified nodes of the trees that Medusa's and Hydra's heads were published with (arXiv 2401.10774, 2402.05109)."""
_OF_CHAINS: Final = "vllm"
"""The engine that verifies only a chain of the heads' best tokens. (TensorRT-LLM, with vLLM's costs, has trees.)"""
_HEADS: Final = Part("heads")


class _Called(NamedTuple):
    """A line of `drafter-kinds.csv`.

    Attributes:
        name: the usual name.
        words: a pattern of the names that sources use.
        head: its name in `hwprofiles.models.head_shapes`; empty if the shape is the target's, or is stated.
        flow: how it drafts.
        layers: share of the shape's layers that a step runs.
    """

    name: str
    words: str
    kind: Kind
    head: str = ""
    flow: Flow = ""
    layers: float = 1.0


@cache
def _kinds() -> tuple[_Called, ...]:
    """Return all kinds of drafters, in order: the first one whose pattern matches is meant."""
    with _KINDS_FILE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    names = ("name", "called", "kind", "head", "flow")
    rows = [(*(line[name] for name in names), line["layers"] or 1.0) for line in lines]
    return TypeAdapter(tuple[_Called, ...]).validate_python(rows)


class Draft(NamedTuple):
    """How a window is drafted.

    Attributes:
        kind: kind of drafter.
        model: the model of which a step runs some layers and the `lm_head`.
        num_layers: layers that one step runs.
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
        """The parts that a step calls, with how often."""
        if self.kind == "self":
            return {LAYER: self.num_layers, LM_HEAD: 1}
        return {_HEADS if self.model.head in IN_ONE_PASS else DRAFT_STEP: 1}

    @property
    def step_bytes(self) -> float:
        """Bytes of weights that one step reads, on all devices together."""
        return sum(count * self.model.shared_work(part.kind, 1).num_bytes for part, count in self.step.items())

    def step_rows(self, drafted: int, top_k: int = 1) -> tuple[int, ...]:
        """Return the rows of every step for a chain of `drafted` tokens, or a tree of as many levels of `top_k` tokens.

        A single step has the whole window's rows; Medusa's heads have one, since they read only the last hidden state.
        The first step of a tree has one row, each later one `top_k` (see `costs.round_plan.tree_shape`).
        """
        if self.kind == "lookup":
            return ()
        if self.is_once:
            return (1 if self.kind == "heads" else drafted,)
        return (1,) + (top_k,) * (drafted - 1)

    def num_steps(self, drafted: int) -> int:
        """Return the number of steps that draft a window."""
        return len(self.step_rows(drafted))

    def num_rows(self, drafted: int, engine: str) -> int:
        """Return the rows of a verification: a chain and the token before it, or the nodes of a tree of heads."""
        is_tree = self.kind == "heads" and _OF_CHAINS not in engine.lower()
        return max(TREE_ROWS, drafted + 1) if is_tree else drafted + 1


def _called(drafter: CaseDrafter) -> _Called | None:
    """Return the kind that a drafter's name means; a draft model if the name is unknown but a shape is stated."""
    unnamed = _Called("draft", "", "draft") if drafter.shape else None
    return next((one for one in _kinds() if re.search(one.words, drafter.kind.lower())), unnamed)


def drafts_in_parallel(drafter: CaseDrafter) -> bool:
    """Return whether a drafter runs while the target verifies: the case says so, or its kind always does."""
    called = _called(drafter)
    return drafter.parallel or (called is not None and called.flow == "parallel")


def draft_of(drafter: CaseDrafter, target: StoredModel, engine: str = "") -> Draft:
    """Return the drafter of a case as an engine runs it.

    Raises:
        PlanError: the kind of drafter is unknown, or a draft model is not named.
        ModelError, ConfigError: its shape or weights are not known.
    """
    called = _called(drafter)
    if called is None:
        known = unknown("drafter", drafter.kind, [one.name for one in _kinds()])
        raise PlanError(f"the cost of a drafter of kind {shown(drafter.kind)} is not known: {known}")
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
    """Return the tokens of a round from the accepted share, or else from the default acceptance of its kind."""
    if share is not None:
        return RoundTokens(1 + share * drafted, _SHARE_ERROR)
    rate = usual_rate(draft.kind, is_single=drafted == 1)
    of_rate = tokens_in_parallel if is_parallel else tokens_of_rate
    low, value, high = (of_rate(one, drafted) for one in (rate.low, rate.value, rate.high))
    return RoundTokens(value, (high - low) / 2 / value)


_SHARE_ERROR: Final = 0.03
"""Relative error from an accepted share: sources round it to a percent or two, but it is of the texts timed."""
