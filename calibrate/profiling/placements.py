"""The schedules that calibration decodes, on every placement that the lanes allow."""

from itertools import product
from typing import Any

from calibrate.profiling.task import CalibrationTask
from decoding.methods import METHODS
from decoding.schedule import Schedule
from hwprofiles.placement import split_pairs, whole_lanes

_FIT_WINDOW, _FIT_TOP_K = 4, 2
_FIT_WINDOW_OF_FEATURES = 2
"""Of mirror with features: the step that starts branches has few rows then, as where it pays. What it takes in runs
beyond its tables shrinks with its rows, for it is the reading of weights that the target drove out of caches."""
_CHECK_WINDOW, _CHECK_TOP_K = 2, 4
_FIT_TREE, _CHECK_TREE = (3, 8, 4), (2, 5, 3)
"""(depth, nodes, nodes expanded per level)."""


def schedules_of(task: CalibrationTask, drafter: str | None, *, is_check: bool) -> list[Schedule]:
    """Return those that set levels, or others that check them, of a head or streams, or of the draft model (None)."""
    return _of_the_draft(task, is_check=is_check) if drafter is None else _of_a_head(task, drafter, is_check=is_check)


def _of_the_draft(task: CalibrationTask, *, is_check: bool) -> list[Schedule]:
    """Speculation on every placement and mirror on every pair; levels are set by plain decoding on every lane too."""
    plain = [] if is_check else [Schedule(method="autoregressive", target_lane=lane.name) for lane in task.lanes]
    if not task.draft_steps:
        return plain
    steps = [False] if is_check or "draft_step_features" not in task.draft_steps else [False, True]
    window = min(_CHECK_WINDOW if is_check else _FIT_WINDOW, task.max_window)
    speculative = [
        Schedule(
            method="speculative",
            target_lane=target,
            draft_lane=draft,
            num_speculative_tokens=window,
            exit_features=has_features,
        )
        for (target, draft), has_features in product(_placements(task), steps)
    ]
    mirrors = [
        Schedule(
            method="mirror",
            target_lane=target,
            draft_lane=draft,
            num_speculative_tokens=min(_FIT_WINDOW_OF_FEATURES, window) if has_features else window,
            **_roots(task, _CHECK_TOP_K if is_check else _FIT_TOP_K, has_features=has_features),
        )
        for has_features, (target, draft) in product(steps, split_pairs(task.lanes))
        if task.exit_layers or not has_features
    ]
    return [*plain, *speculative, *mirrors]


def _roots(task: CalibrationTask, top_k: int, *, has_features: bool) -> dict[str, Any]:
    """Roots from the deepest exit if there is any: it sends the features."""
    if not task.exit_layers:
        return {"root_source": "draft", "draft_top_k": top_k}
    deepest = max(task.exit_layers)
    return {"root_source": "exit", "exit_layer": deepest, "exit_top_k": top_k, "exit_features": has_features}


def _of_a_head(task: CalibrationTask, drafter: str, *, is_check: bool) -> list[Schedule]:
    """A head in every placement, streams on every lane, nothing of free text; checks have smaller trees."""
    traits = METHODS[task.heads[drafter]]
    if traits.finds_text:
        return []
    depth, size, top_k = _CHECK_TREE if is_check else _FIT_TREE
    placements = [(lane.name, None) for lane in task.lanes] if traits.drafts_itself else _placements(task)
    return [
        Schedule(
            method=task.heads[drafter],
            target_lane=target,
            draft_lane=draft,
            num_speculative_tokens=depth,
            tree_size=size,
            tree_top_k=top_k if traits.has_dynamic_trees else 0,
            drafter=drafter,
        )
        for target, draft in placements
    ]


def _placements(task: CalibrationTask) -> list[tuple[str, str | None]]:
    return [*split_pairs(task.lanes), *((name, name) for name in whole_lanes(task.lanes))]
