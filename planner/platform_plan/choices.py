"""Ranks several drafts or machines, the fastest first."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from decoding.errors import PlanError
from planner.platform_plan.platform_plan import RATES, PlatformPlan, plan_platform
from planner.platform_plan.question import Question
from planner.platform_plan.ranked_schedules import PlannedSchedule
from sim.evaluator import Evaluator


class DraftChoice(NamedTuple):
    """One draft beside the fastest one.

    Attributes:
        name: as it was asked for.
        plan: with this draft alone.
        acceptance_to_lead: mean acceptance from which on it is as fast as the fastest draft; None where it never is,
            and for the fastest itself.
        times_s: time per token of its best method and placement at each of `RATES`; empty for a single draft.
    """

    name: str
    plan: PlatformPlan
    acceptance_to_lead: float | None
    times_s: Sequence[float] = ()

    @property
    def best(self) -> PlannedSchedule | None:
        """Its fastest speculation."""
        return self.plan.drafting


def choose_draft(plans: Iterable[tuple[str, PlatformPlan]]) -> list[DraftChoice]:
    """Return the drafts of plans that differ in nothing else, the fastest first."""

    def times_s(one: tuple[str, PlatformPlan]) -> tuple[float, float]:
        return one[1].recommended.tpot_s, inf if one[1].drafting is None else one[1].drafting.tpot_s

    ranked = sorted(plans, key=times_s)
    if len(ranked) == 1:
        return [DraftChoice(*ranked[0], None)]
    fastest_s, curves = ranked[0][1].recommended.tpot_s, [_times_s(plan) for _, plan in ranked]
    return [
        DraftChoice(name, plan, _acceptance_for(curve, fastest_s) if index else None, curve)
        for index, ((name, plan), curve) in enumerate(zip(ranked, curves, strict=True))
    ]


def _times_s(plan: PlatformPlan) -> list[float]:
    """Return the time per token of a plan's best method and placement at each of `RATES`, with its best window."""
    best = plan.drafting
    if best is None:
        return []
    windows = {
        one.schedule.num_rows: one.schedule
        for one in reversed(plan.speculation)
        if (one.pair, one.schedule.method) == (best.pair, best.schedule.method)
    }
    evaluator = Evaluator(plan.profile, plan.question.record, costs=plan.costs)
    there = (evaluator.with_texts(plan.question.record_at(rate)) for rate in RATES)
    return [min(map(one.tpot_s, windows.values())) for one in there]


def _acceptance_for(times_s: Sequence[float], tpot_s: float) -> float | None:
    """Return the acceptance at which times at `RATES` come to `tpot_s`, interpolated; None if they never do."""
    if not times_s or times_s[-1] > tpot_s or times_s[0] < tpot_s:
        return None
    return float(np.interp(-tpot_s, [-time_s for time_s in times_s], RATES))


class MachineChoice(NamedTuple):
    """One machine and its drafts, the fastest first; none where the target fits nowhere, and `refused` says why."""

    name: str
    drafts: list[DraftChoice]
    refused: str = ""

    @property
    def fastest_s(self) -> float:
        """Time per token of its recommended schedule; infinite where there is none."""
        return self.drafts[0].plan.recommended.tpot_s if self.drafts else inf


def choose_machine(questions: Mapping[str, Mapping[str, Question]]) -> list[MachineChoice]:
    """Return machines by the time per token of each one's recommended schedule; those without one come last.

    Args:
        questions: by machine and draft, as they were asked for.

    Raises:
        PlanError: the models fit on none of them; says why for the first one.
    """
    found = []
    for name, drafts in questions.items():
        try:
            plans = [(draft, plan_platform(question)) for draft, question in drafts.items()]
            found.append(MachineChoice(name, choose_draft(plans)))
        except PlanError as error:
            found.append(MachineChoice(name, [], str(error)))
    if not any(one.drafts for one in found):
        raise PlanError(found[0].refused)
    return sorted(found, key=lambda one: one.fastest_s)
