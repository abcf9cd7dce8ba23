"""What a calibration is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from calibrate.profiling.grid import USUAL_BRANCHES, Effort, full_effort, quick_effort
from calibrate.profiling.head_parts import HeadParts
from calibrate.profiling.lane_parts import DraftStep, LaneParts
from calibrate.profiling.model_sizes import ModelSizes
from decoding.methods import METHODS
from decoding.schedule import Method
from hwprofiles.placement import PlacedLane, split_pairs

_QUICK_S = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationTask:
    """What is to be calibrated: a target, its drafters and lanes, which will all load both models.

    Attributes:
        drafter: None calibrates plain decoding only.
        contexts: the fewest and the most cached tokens that schedules will meet.
        max_window, max_branches, max_tree: tokens of the longest chain, branches per round, nodes of the largest tree.
        heads: heads and streams of the target by name, and the method that each is for.
        time_s: in which to be done. Passes that do not fit are left out; one is made in any case. None is 100 s for a
            quick calibration, and no limit for a full one.
        left_out: a sentence for every model that lanes here cannot run; the profile's notes have them.
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
        """The time it may take."""
        if self.time_s is not None:
            return self.time_s
        return _QUICK_S if self.quick else inf

    @property
    def source(self) -> str:
        """Origin of the numbers."""
        return f"calibration on this machine ({'quick' if self.quick else 'full'})"

    @property
    def effort(self) -> Effort:
        """What is measured how often; raises `ConfigError` if the contexts are no range."""
        max_tree = self.max_tree if any(METHODS[method].is_tree for method in self.heads.values()) else 0
        # a step with features reads the window and starts the branches at once
        max_step = self.max_branches + (self.max_window if "draft_step_features" in self.draft_steps else 0)
        return (quick_effort if self.quick else full_effort)(self.max_window, self.contexts, max_tree, max_step)

    @property
    def draft_steps(self) -> tuple[DraftStep, ...]:
        """Steps that the draft has; none without a draft."""
        if self.drafter is None:
            return ()
        return ("draft_step", "draft_step_features", "draft_start") if self.sizes.feature_width else ("draft_step",)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(target's lane, draft's lane) of all lanes that can work at the same time; none without a draft."""
        return split_pairs(self.lanes) if self.draft_steps else []

    @property
    def lane_parts(self) -> LaneParts:
        """The parts of the target and its draft."""
        return LaneParts(
            effort=self.effort,
            num_layers=self.sizes.config.num_layers,
            exit_layers=self.exit_layers,
            draft_steps=self.draft_steps,
            num_streams=self.sizes.num_draft_streams,
            max_branches=self.max_branches,
            source=self.source,
        )

    @property
    def head_parts(self) -> tuple[HeadParts, ...]:
        """The parts of everything else that drafts."""
        return tuple(
            HeadParts(
                drafter=drafter, method=method, effort=self.effort, most_rows=self.max_tree + 1, source=self.source
            )
            for drafter, method in self.heads.items()
        )
