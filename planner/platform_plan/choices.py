"""Compares several drafts, or several machines, and ranks the fastest first."""

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
    """One of several drafts, compared with the fastest one.

    Attributes:
        name: the draft as the user named it.
        plan: the plan with this draft alone.
        acceptance_to_lead: mean acceptance from which on this draft is as fast as the fastest one; None where it never
            is, and for the fastest itself.
        times_s: time per token of its best method and placement at each of `RATES`; empty for a single draft.
    """

    name: str
    plan: PlatformPlan
    acceptance_to_lead: float | None
    times_s: Sequence[float] = ()

    @property
    def best(self) -> PlannedSchedule | None:
        """The fastest speculation with this draft."""
        return self.plan.drafting


def choose_draft(plans: Iterable[tuple[str, PlatformPlan]]) -> list[DraftChoice]:
    """Return the drafts of (name, plan) pairs that differ only in the draft, the fastest first."""

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
    """Return the acceptance at which `times_s` (at `RATES`, interpolated) falls to `tpot_s`; None if it never does."""
    if not times_s or times_s[-1] > tpot_s or times_s[0] < tpot_s:
        return None
    return float(np.interp(-tpot_s, [-time_s for time_s in times_s], RATES))


class MachineChoice(NamedTuple):
    """One machine and its drafts, the fastest first; none if the target fits nowhere: then `refused` says why."""

    name: str
    drafts: list[DraftChoice]
    refused: str = ""

    @property
    def fastest_s(self) -> float:
        """Time per token of the machine's recommended schedule; infinite where there is none."""
        return self.drafts[0].plan.recommended.tpot_s if self.drafts else inf


def choose_machine(questions: Mapping[str, Mapping[str, Question]]) -> list[MachineChoice]:
    """Return machines by the time per token of their recommended schedules; machines without one come last.

    Args:
        questions: by machine and draft, as the user named them.

    Raises:
        PlanError: the models fit on no machine; the message says why for the first one.
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
