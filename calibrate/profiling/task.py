"""The task of a calibration, and its plan: sizes and repeats of timed parts, and schedules to decode."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf
from typing import Any, Literal

from calibrate.profiling.model_sizes import ModelSizes
from decoding.errors import ConfigError, shown
from decoding.methods import METHODS
from decoding.schedule import Method, Schedule
from hwprofiles.lane_cores import PlacedLane, split_pairs, whole_lanes
from runtime.backends.openvino.buckets import PROMPT_ROWS

DraftStep = Literal["draft_step", "draft_step_features", "draft_start"]
"""Steps of the draft, by their tables in a `LaneProfile`."""

USUAL_BRANCHES = 32
"""Default of the most branches per round: more did not pay on the devices tested."""
_QUICK_S = 100.0
"""Default time limit of a quick calibration."""
_BETWEEN = 4
"""Number of rows between the ends of the grids that is measured at all contexts too."""
_LEAST_STEP = 16
"""Rows of a draft step that a calibration's decodings need at most."""
_FIT_WINDOW, _FIT_TOP_K = 4, 2
_FIT_WINDOW_OF_FEATURES = 2
"""Window of fitted mirror runs with features. It is short, as it is when mirror pays, because the time beyond the
tables shrinks with more rows of the step that starts branches: it is reading weights that the target evicted from
caches."""
_CHECK_WINDOW, _CHECK_TOP_K = 2, 4
_FIT_TREE, _CHECK_TREE = (3, 8, 4), (2, 5, 3)
"""(Depth, nodes, nodes expanded per level) of trees in fitted runs and in checks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """The sizes to measure, and the number of repeats.

    Attributes:
        passes: number of passes; each visits all parts of all lanes in turn, so that drift affects all alike.
        least_passes: with fewer passes, for lack of time, the profile gets a note.
        repeats: repeats of a part at one visit.
        target_rows, draft_rows: rows of verifications, and of draft steps.
        part_rows: rows for which the `lm_head` and exits are also timed alone.
        tree_rows: rows of verifications of trees, more than chains have.
        head_rows: rows of draft heads' steps.
        contexts: cached tokens, ascending. Row counts outside `wide_rows` are measured at the first context only; their
            growth follows from that of the others.
        prefill_rows: lengths of prompts: each size of a prefill call, and prompts of several calls.
        run_tokens: length of decoded texts.
        head_turns: number of passes over which the runs of a head are distributed.
    """

    passes: int
    least_passes: int
    repeats: int
    target_rows: tuple[int, ...]
    part_rows: tuple[int, ...]
    draft_rows: tuple[int, ...]
    tree_rows: tuple[int, ...]
    head_rows: tuple[int, ...]
    contexts: tuple[int, ...]
    prefill_rows: tuple[int, ...]
    run_tokens: int
    head_turns: int

    @property
    def wide_rows(self) -> frozenset[int]:
        """Row counts that are measured at all contexts: the ends of both grids, and one between them."""
        ends = {rows[end] for rows in (self.target_rows, self.draft_rows) for end in (0, -1)}
        return frozenset(ends | ({_BETWEEN} & {*self.target_rows, *self.draft_rows}))


def require_range(contexts: Sequence[int]) -> None:
    """Raise `ConfigError` unless contexts are two numbers, 0 <= first < last."""
    if len(contexts) != 2:
        msg = "they are two numbers, the fewest and the most cached tokens (contexts_of returns them)"
        raise ConfigError(f"contexts are {shown(tuple(contexts))}: {msg}")
    first, last = contexts
    if not 0 <= first < last:
        raise ConfigError(f"contexts are {first}..{last}: the first must be at least 0 and below the last")


def effort_for(
    max_window: int,
    contexts: tuple[int, int],
    max_tree: int = 0,
    max_step: int = USUAL_BRANCHES,
    *,
    quick: bool,
) -> Effort:
    """Return the effort for trees of up to `max_tree` nodes and draft steps of up to `max_step` rows.

    A quick calibration has few sizes, and as many passes as time allows; a full one has more sizes and a fixed number
    of passes. Raises `ConfigError` if the contexts are no range.
    """
    require_range(contexts)
    last = contexts[-1]
    chain, steps = max_window + 1, (1, 2, 4, 8, 16, 32, 64) if quick else (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
    gaps = 1 if quick else 2
    spread = tuple(sorted({last * step // gaps for step in range(gaps + 1)}))
    target_rows = up_to(chain, (1, 2, 3, 5, 9) if quick else range(1, chain))
    trees = ((17,) if quick else (11, 13, 17, 25)) if max_tree else ()
    return Effort(
        passes=12 if quick else 5,
        least_passes=2 if quick else 5,
        repeats=2 if quick else 3,
        target_rows=target_rows,
        part_rows=(1, chain) if quick else target_rows,
        draft_rows=up_to(max(max_step, _LEAST_STEP), steps),
        tree_rows=tuple(rows for rows in up_to(max_tree + 1, trees) if rows > chain),
        head_rows=((1, 4, 8, 16) if quick else (1, 2, 3, 4, 6, 8, 12, 16)) if max_tree else (),
        contexts=spread,
        prefill_rows=tuple(sorted({count for count in (1, *PROMPT_ROWS, *spread) if 0 < count <= last})),
        run_tokens=16 if quick else 24,
        head_turns=3 if quick else 1,
    )


def up_to(last: int, rows: Iterable[int]) -> tuple[int, ...]:
    """Return the row counts below `last`, and `last`."""
    return (*[count for count in rows if count < last], last)


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationTask:
    """What to calibrate: a target, its drafters, and lanes, which all load both models.

    Attributes:
        drafter: the draft model; None: calibrate plain decoding (and `heads`) only.
        contexts: the fewest and the most cached tokens that schedules will have.
        max_window, max_branches, max_tree: tokens of the longest chain, branches per round, nodes of the largest tree.
        heads: method of each draft head, and of the target's streams, by name.
        time_s: time limit. Passes that do not fit are left out, except the first. None: 100 s for a quick calibration,
            and no limit for a full one.
        left_out: a sentence for each model that the lanes cannot run, for the profile's notes.
    """

    target: str
    drafter: str | None
    sizes: ModelSizes
    lanes: tuple[PlacedLane, ...]
    exit_layers: tuple[int, ...]
    contexts: tuple[int, int]
    max_window: int = 8
    max_branches: int = USUAL_BRANCHES
    heads: Mapping[str, Method] = field(default_factory=dict)
    max_tree: int = 32
    quick: bool = False
    time_s: float | None = None
    left_out: tuple[str, ...] = ()

    @property
    def limit_s(self) -> float:
        """The time limit in seconds; may be infinite."""
        if self.time_s is not None:
            return self.time_s
        return _QUICK_S if self.quick else inf

    @property
    def source(self) -> str:
        """The source of the profile's numbers; it names no machine, as profiles are also read on other machines."""
        return f"a {'quick' if self.quick else 'full'} calibration"

    @property
    def effort(self) -> Effort:
        """The sizes to measure, and the repeats; raises `ConfigError` if the contexts are no range."""
        max_tree = self.max_tree if any(METHODS[method].is_tree for method in self.heads.values()) else 0
        # a step with features may read the window and start all branches at once
        max_step = self.max_branches + (self.max_window if "draft_step_features" in self.draft_steps else 0)
        return effort_for(self.max_window, self.contexts, max_tree, max_step, quick=self.quick)

    @property
    def anchor_context(self) -> int:
        """Cached tokens of the anchors: the middle of `contexts`."""
        return sum(self.contexts) // 2

    @property
    def draft_steps(self) -> tuple[DraftStep, ...]:
        """The kinds of steps that the draft has; empty without a draft."""
        if self.drafter is None:
            return ()
        return ("draft_step", "draft_step_features", "draft_start") if self.sizes.feature_width else ("draft_step",)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(target's lane, draft's lane) of all lanes that can work at the same time; empty without a draft."""
        return split_pairs(self.lanes) if self.draft_steps else []

    def decoded_exit(self, lane: str) -> int | None:
        """Return the exit layer of runs with the target on a lane: the deepest, if another lane can draft meanwhile."""
        return max(self.exit_layers, default=None) if lane in dict(self.pairs) else None


def schedules_of(task: CalibrationTask, drafter: str | None, *, is_check: bool) -> list[Schedule]:
    """Return the schedules to decode with a head or streams, or the draft model (None): for fitting, or as checks."""
    return _of_the_draft(task, is_check=is_check) if drafter is None else _of_a_head(task, drafter, is_check=is_check)


def _of_the_draft(task: CalibrationTask, *, is_check: bool) -> list[Schedule]:
    """Return schedules of speculation in each placement, mirror on each pair, and (not for checks) plain decoding."""
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
    """Return a schedule's options for roots from the deepest exit (which also sends features), else from the draft."""
    if not task.exit_layers:
        return {"root_source": "draft", "draft_top_k": top_k}
    deepest = max(task.exit_layers)
    return {"root_source": "exit", "exit_layer": deepest, "exit_top_k": top_k, "exit_features": has_features}


def _of_a_head(task: CalibrationTask, drafter: str, *, is_check: bool) -> list[Schedule]:
    """Return schedules of a head in each placement, or of streams on each lane; checks have smaller trees."""
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
