"""Ranks several drafts or machines, the fastest first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from decoding.errors import FitsNowhereError, PlanError
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.memory_fit import Places
from planner.platform_plan.partial_offload import PartialOffload, best_split, layer_split
from planner.platform_plan.platform_plan import RATES, PlatformPlan, plan_platform
from planner.platform_plan.question import Question, demand_of
from planner.platform_plan.ranked_schedules import PlannedSchedule, ranked
from sim.derived.derived_profile import derived_profile
from sim.evaluator import Evaluator

_WHOLE_ALONE = "pages, files, batches, sweeps and measured runs"
"""What is had of a target alone that a memory holds whole."""


class DraftChoice(NamedTuple):
    """One draft beside the fastest one.

    Attributes:
        name: as it was asked for.
        plan: with this draft alone.
        acceptance_to_lead: mean acceptance from which on it is as fast as the fastest draft; None where it never is,
            or where layers are split, and for the fastest itself.
        times_s: time per token of its best method and placement at each of `RATES`; empty for a single draft, and where
            layers are split.
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
        return one[1].fastest_s, inf if one[1].drafting is None else one[1].drafting.tpot_s

    ranked = sorted(plans, key=times_s)
    if len(ranked) == 1:
        return [DraftChoice(*ranked[0], None)]
    fastest_s, is_split = ranked[0][1].fastest_s, any(plan.split for _, plan in ranked)
    curves = [[] if is_split else _times_s(plan) for _, plan in ranked]
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
    """One machine and its drafts, the fastest first; none where no memory holds the target, and `refused` says why.

    `splits` has the target's split over cards and the CPU there by draft, the fastest first, if that holds it.
    """

    name: str
    drafts: list[DraftChoice]
    refused: str = ""
    splits: Mapping[str, PartialOffload] = MappingProxyType({})

    @property
    def draft(self) -> str:
        """Name of the fastest draft, of a machine that has any answer."""
        return self.drafts[0].name if self.drafts else next(iter(self.splits))

    @property
    def fastest_s(self) -> float:
        """Time per token of what runs the fastest; infinite where nothing does."""
        return self.drafts[0].plan.fastest_s if self.drafts else next((one.tpot_s for one in self.splits.values()), inf)


def choose_machine(questions: Mapping[str, Mapping[str, Question]]) -> list[MachineChoice]:
    """Return machines by the time per token of each one's fastest schedule, or split; those without one come last.

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
            splits = _splits(drafts)
            refused = error.reason if splits and isinstance(error, FitsNowhereError) else str(error)
            found.append(MachineChoice(name, [], refused, splits))
    if all(one.fastest_s == inf for one in found):
        raise PlanError(found[0].refused)
    return sorted(found, key=lambda one: one.fastest_s)


def first_with(machines: Sequence[MachineChoice], more: Sequence[object]) -> MachineChoice:
    """Return the fastest machine; where more is asked for than a split has, the fastest that holds the target whole.

    Raises:
        PlanError: more is asked for, and all machines split it.
    """
    whole = next((one for one in machines if one.drafts or not any(more)), None)
    if whole is None:
        raise PlanError(f"{_WHOLE_ALONE} are not of a split: {machines[0].refused}")
    return whole


def split_beside(machines: Sequence[MachineChoice], chosen: MachineChoice) -> tuple[str, ...]:
    """Return the sentence that says of which machine an answer is, where a faster one splits the target."""
    if chosen is machines[0]:
        return ()
    fastest = f"The fastest of the machines is {machines[0].name} with a split"
    return (f"{fastest}, which has no {_WHOLE_ALONE}; the fastest without one is {chosen.name}.",)


def _splits(questions: Mapping[str, Question]) -> dict[str, PartialOffload]:
    """Return the split of a target that no memory of a machine holds, by draft, the fastest first; where there is one.

    What drafts are accepted is that of schedules on a card as if it held all; its times are those of data sheets.
    """
    found = {}
    for draft, asked in questions.items():
        question = replace(asked, calibrated=None)
        if (split := layer_split(question, has_draft=False)) is None:
            continue
        card = next(iter(split.layers))
        places = Places(alone=(card,), pairs=(LanePair.alone(card),), needs=(), left_out=())
        machine = derived_profile(question.platform, demand_of(question, [card]))
        ranking, _ = ranked(question, places, machine)
        if (best := best_split(question, ranking, machine.profile.round_overhead_s)) is not None:
            found[draft] = best
    return dict(sorted(found.items(), key=lambda one: one[1].tpot_s))
