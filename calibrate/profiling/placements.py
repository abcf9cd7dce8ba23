"""The schedules that calibration decodes, on every placement that the lanes allow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from typing import Any

from calibrate.profiling.lane_parts import DraftStep
from decoding.methods import METHODS
from decoding.schedule import Method, Schedule
from hwprofiles.placement import PlacedLane, split_pairs, whole_lanes

_FIT_WINDOW, _FIT_TOP_K = 4, 2
_FIT_WINDOW_OF_FEATURES = 2
"""Of mirror with features: the step that starts branches has few rows then, as where it pays. What it takes in runs
beyond its tables shrinks with its rows, for it is the reading of weights that the target drove out of caches."""
_CHECK_WINDOW, _CHECK_TOP_K = 2, 4
_FIT_TREE, _CHECK_TREE = (3, 8, 4), (2, 5, 3)
"""(depth, nodes, nodes expanded per level)."""


def fit_schedules(
    lanes: Sequence[PlacedLane], max_window: int, draft_steps: Sequence[DraftStep], exit_layers: Sequence[int]
) -> list[Schedule]:
    """Those that set levels: plain decoding on every lane, speculation on every placement, mirror on every pair."""
    plain = [Schedule(method="autoregressive", target_lane=lane.name) for lane in lanes]
    if not draft_steps:
        return plain
    window = min(_FIT_WINDOW, max_window)
    reads_features = "draft_step_features" in draft_steps
    steps = [False, True] if reads_features else [False]
    speculative = [
        _speculative(placement, window, exit_features=has) for placement, has in product(_placements(lanes), steps)
    ]
    windows = [min(_FIT_WINDOW_OF_FEATURES, max_window) if has else window for has in steps]
    mirrors = [
        _mirrors(lanes, window, exit_layers, _FIT_TOP_K, exit_features=has)
        for has, window in zip(steps, windows, strict=True)
    ]
    return [*plain, *speculative, *chain.from_iterable(mirrors)]


def check_schedules(
    lanes: Sequence[PlacedLane], max_window: int, draft_steps: Sequence[DraftStep], exit_layers: Sequence[int]
) -> list[Schedule]:
    """Others, to compare with what was fitted."""
    if not draft_steps:
        return []
    window = min(_CHECK_WINDOW, max_window)
    speculative = [_speculative(placement, window) for placement in _placements(lanes)]
    return speculative + _mirrors(lanes, window, exit_layers, _CHECK_TOP_K)


def head_schedules(lanes: Sequence[PlacedLane], drafter: str, method: Method, *, is_check: bool) -> list[Schedule]:
    """Those of a head in every placement, of streams on every lane, none of free text; checks have smaller trees."""
    traits = METHODS[method]
    if traits.finds_text:
        return []
    depth, size, top_k = _CHECK_TREE if is_check else _FIT_TREE
    options: dict[str, Any] = {
        "method": method,
        "num_speculative_tokens": depth,
        "tree_size": size,
        "tree_top_k": top_k if traits.has_dynamic_trees else 0,
        "drafter": drafter,
    }
    if traits.drafts_itself:
        return [Schedule(target_lane=lane.name, **options) for lane in lanes]
    return [Schedule(target_lane=target, draft_lane=draft, **options) for target, draft in _placements(lanes)]


def _mirrors(
    lanes: Sequence[PlacedLane], window: int, exit_layers: Sequence[int], top_k: int, *, exit_features: bool = False
) -> list[Schedule]:
    """The mirror method on every two lanes, with roots from the deepest exit if there is any: it sends the features."""
    if exit_features and not exit_layers:
        return []
    roots: dict[str, Any] = {"root_source": "draft", "draft_top_k": top_k}
    if exit_layers:
        roots = {"root_source": "exit", "exit_layer": max(exit_layers), "exit_top_k": top_k}
        roots["exit_features"] = exit_features
    return [
        Schedule(method="mirror", target_lane=target, draft_lane=draft, num_speculative_tokens=window, **roots)
        for target, draft in split_pairs(lanes)
    ]


def _placements(lanes: Sequence[PlacedLane]) -> list[tuple[str, str]]:
    return split_pairs(lanes) + [(name, name) for name in whole_lanes(lanes)]


def _speculative(placement: tuple[str, str], window: int, *, exit_features: bool = False) -> Schedule:
    target_lane, draft_lane = placement
    return Schedule(
        method="speculative",
        target_lane=target_lane,
        draft_lane=draft_lane,
        num_speculative_tokens=window,
        exit_features=exit_features,
    )
