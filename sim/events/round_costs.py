"""`Durations` as lists over contexts, from which the event world reads single values faster than from arrays."""

from __future__ import annotations

from sim.cost.durations import Durations


class RoundCosts:
    """The times of one schedule's operations, by the names that they have in `Durations`; contexts come last."""

    def __init__(self, durations: Durations) -> None:
        self.plan = durations.plan
        self.first_context = durations.first_context
        self.segments_s: list[list[float]] = [segment.tolist() for segment in durations.segments_s]
        self.step_s: dict[int | str, list[float]] = {kind: step.tolist() for kind, step in durations.step_s.items()}
        self.catch_up_s: list[list[float]] = durations.catch_up_s.tolist()
        self.later_s: list[list[float]] = [step.tolist() for step in durations.later_s]
        self.rollout_s: list[list[float]] = durations.rollout_s.tolist()
        self.guessing_s: list[list[float]] = durations.guessing_s.tolist()
        self.slowdowns: dict[int | str, dict[int | str, tuple[list[float], list[float]]]] = {
            segment: {kind: (slow.target.tolist(), slow.draft.tolist()) for kind, slow in slowdowns.items()}
            for segment, slowdowns in enumerate(durations.slowdowns)
        }
        self.target_half_s = durations.target_half_s
        self.draft_half_s = durations.draft_half_s
        self.round_overhead_s = durations.round_overhead_s
        self.transfer_s = durations.transfer_s
