"""What a round of a public measurement drafts, verifies and commits: a chain, a chain that ends early, or a tree."""

from math import hypot
from typing import Final, NamedTuple

import numpy as np

from decoding.schedule import MAX_WINDOW
from hwprofiles.curves.names import engine_of
from planner.platform_plan.default_acceptance import ALTERNATIVES
from planner.published.round_tokens import OTHER_NUMBER_ERROR, RoundTokens
from planner.published.usual_rates import usual_rate
from planner.retrodict.cases import PublishedSpeed
from planner.retrodict.drafters import Draft, accepted
from sim.acceptance.drawn_texts import pool_paths
from sim.acceptance.rates import TaskRates

UNKNOWN_WINDOW_ERROR: Final = 0.15
"""Relative error of a round if the number of drafted tokens is not stated, or adapts to acceptance: our judgement."""
LONGEST_CHAIN: Final = 12
"""The longest chain published for a head that drafts token by token; a larger number is the size of a tree."""
_OF_TREES: Final = ("eagle", "mtp", "heads")
_LEVELS: Final = 6
"""Default number of steps that draft a tree: EAGLE-2's. (EAGLE-3's are 7, SGLang's 5 by its documentation.)"""
_LEVELS_OF_HEADS: Final = 4
_TOP_K: Final = 10
"""Nodes of a level that EAGLE expands (arXiv 2406.16858)."""
_ENDS_EARLY: Final = "ik_llama.cpp"
"""The engine whose draft models stop below a confidence of 0.75 by default; llama.cpp's default is now 0."""


class SizedRound(NamedTuple):
    """Rounds of one size: their share of all rounds, the rows of each draft step, and the rows of the verification."""

    portion: float
    step_rows: tuple[int, ...]
    num_rows: int


class DraftedWindow(NamedTuple):
    """All rounds of a setting, by size, and the mean number of tokens that a round commits."""

    rounds: tuple[SizedRound, ...]
    committed: RoundTokens


class _Tree(NamedTuple):
    size: int
    levels: int
    top_k: int


def num_in_a_row(draft: Draft, one: PublishedSpeed) -> int:
    """Return how many tokens are drafted one after the other; for a tree its levels."""
    tree = _tree_of(draft, one)
    return one.drafted if tree is None else tree.levels


def window_of(draft: Draft, one: PublishedSpeed, engine: str, share: float | None) -> DraftedWindow:
    """Return the rounds of a setting; `share` is accepted over drafted tokens, None for the default acceptance."""
    tree = _tree_of(draft, one)
    drafts_in_turn = draft.kind == "draft" and not draft.is_once and not draft.is_parallel
    is_limit = drafts_in_turn and (one.ends_early or engine_of(engine) == _ENDS_EARLY)
    error = 0.0 if one.is_drafted_known and not is_limit else UNKNOWN_WINDOW_ERROR
    error = hypot(error, OTHER_NUMBER_ERROR) if share is not None and one.is_share_of_another else error
    found = accepted(draft, one.drafted, share, is_parallel=draft.is_parallel)
    rounds: tuple[SizedRound, ...] = (_round_of(draft, one.drafted, engine),)
    if tree is not None:
        found = found if share is not None else _committed_by(tree, draft)
        rounds = (SizedRound(1.0, draft.step_rows(tree.levels, min(tree.top_k, tree.size - 1)), tree.size),)
    elif is_limit and share is None:
        rounds = _ending_early(draft, one.drafted, engine)
    return DraftedWindow(rounds, RoundTokens(found.tokens, hypot(found.error, error)))


def _ending_early(draft: Draft, most: int, engine: str) -> tuple[SizedRound, ...]:
    """Return the rounds of a draft that stops after the first token it is unsure of; that token is verified too.

    The draft is assumed to be unsure of exactly the tokens that are refused. A round then commits as many tokens as
    with a chain of `most`, and the accepted share of drafted tokens is the acceptance rate. This is not used with a
    published share: real drafts are sure of some refused tokens, so the share does not say how many were drafted.
    """
    rate = usual_rate(draft.kind, is_single=most == 1).value
    portions = [rate**place * (1 - rate) for place in range(most - 1)]
    sizes = zip([*portions, 1 - sum(portions)], range(1, most + 1), strict=True)
    return tuple(_round_of(draft, size, engine, portion) for portion, size in sizes)


def _round_of(draft: Draft, drafted: int, engine: str, portion: float = 1.0) -> SizedRound:
    num_rows = draft.num_rows(drafted, engine)
    return SizedRound(portion, draft.step_rows(drafted, _TOP_K if num_rows > drafted + 1 else 1), num_rows)


def _tree_of(draft: Draft, one: PublishedSpeed) -> _Tree | None:
    """Return the stated tree of a setting, or a tree of all drafted tokens if they are too many for a chain.

    The last committed token counts as a node of the tree, as in EAGLE's code and in SGLang's `num_draft_tokens`.
    """
    is_too_long = draft.kind in _OF_TREES and one.drafted > LONGEST_CHAIN
    is_number_of_nodes = is_too_long and (draft.kind == "heads" or not draft.is_once)
    if one.tree is None and not is_number_of_nodes:
        return None
    size, steps, top_k = one.tree or (one.drafted, None, None)
    usual = _LEVELS_OF_HEADS if draft.kind == "heads" else _LEVELS
    levels = steps or (one.drafted if one.drafted < size else usual)
    levels = max(1, min(levels, size - 1, MAX_WINDOW))
    return _Tree(size, levels, top_k or _TOP_K)


def _committed_by(tree: _Tree, draft: Draft) -> RoundTokens:
    """Return the tokens that a tree commits at the default rate; the rate of Medusa-like heads is already of trees."""
    if draft.kind == "heads":
        return accepted(draft, tree.levels, None)
    rate = usual_rate(draft.kind, is_single=tree.levels == 1)
    low, value, high = (_tokens_of_tree(tree, one) for one in (rate.low, rate.value, rate.high))
    return RoundTokens(value, (high - low) / 2 / value)


def _tokens_of_tree(tree: _Tree, rate: float) -> float:
    """Return the tokens that a tree of the most often accepted nodes commits, if its levels are independent.

    The draft's further candidates are assumed to be right as often as those of the draft that this project ships. A
    tree of 60 with EAGLE-2's levels then commits 3.8 tokens at the default rate; EAGLE-2 published 3.5 to 4.2 (arXiv
    2503.01840, table 1).
    """
    rates = TaskRates(rates=(rate,) * tree.levels, alternative_rates=ALTERNATIVES).rank_rates()
    paths = pool_paths(rates, tree.levels, min(tree.top_k, len(ALTERNATIVES) + 1))[: tree.size - 1]
    return 1 + sum(float(np.prod(rates[range(len(path)), path])) for path in paths)
