"""Plans as JSON for scripts: the answer, the ranking, the numbers used, and batches."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from decoding.schedule import Schedule
from mirrorsd.compare.numbers import picked, ratio_entry, schedule_entry
from planner.plan_engines import engines_of, engines_of_batch
from planner.platform_plan.advice import advice, held_back
from planner.platform_plan.batches import BatchChoice, BatchPlan
from planner.platform_plan.changed_numbers.number_sweep import SweepCell, SweptNumber, turns
from planner.platform_plan.changed_numbers.tornado import TornadoBar
from planner.platform_plan.choices import DraftChoice, MachineChoice
from planner.platform_plan.measured_run import BesideMeasured, ComparedRuns
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.question import Question
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.platform_plan.trade_offs import OBJECTIVES, pareto
from sim.batch_prediction import BatchPrediction

_OF_A_ROW: Final = (
    "tpot_s tpot_s_low tpot_s_high ttft_s speedup energy_j_per_token usd_per_million_tokens memory_bytes num_devices "
    "bound needs_training"
)


def plan_entry(
    plan: PlatformPlan, bars: Sequence[TornadoBar] = (), asked: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a plan; schedules have unique names, `bars` are the numbers that matter most.

    `asked` has what the user gave: models, machine and changes.
    """
    needed, names = plan.needed, plan.names
    front = set(map(id, pareto(plan.ranking)))
    rows = [(names[one.schedule], one) for one in plan.ranking]
    return {
        "question": {**(asked or {}), **_question_entry(plan.question)},
        "winner": names[plan.recommended.schedule],
        "ranking": [
            {
                "name": name,
                "schedule": schedule_entry(one.schedule),
                "method": one.schedule.method,
                "placement": picked(one.pair, "target draft"),
                "equal_placements": [picked(pair, "target draft") for pair in plan.equal_to(one.pair)],
                **picked(one, _OF_A_ROW),
                "over_best": ratio_entry(plan.compared(one, plan.best)),
                "runs_on": [engine._asdict() for engine in engines_of(plan, one)],
            }
            for name, one in rows
        ],
        "pareto": [{"name": name, **picked(one, " ".join(OBJECTIVES))} for name, one in rows if id(one) in front],
        "tornado": [_bar_entry(one) for one in bars],
        **advice(plan).entry,
        "pays": plan.pays,
        "speedup": _speedup_entry(plan),
        "break_even": needed and {"acceptance": needed.at, **picked(needed, "low high now always never")},
        "search": {
            "num_schedules": len(plan.ranking),
            "num_prompts": plan.question.record.num_prompts,
            "seconds": plan.seconds,
        },
        "memory": [picked(need, "place memory needed_bytes capacity_bytes fits") for need in plan.needs],
        "left_out": list(plan.left_out),
        "assumptions": [asdict(one) for one in plan.assumptions],
    }


def _question_entry(question: Question) -> dict[str, Any]:
    """Return what a plan was asked; `context` is None for recorded texts, since their lengths differ."""
    texts = None if question.assumed is None else question.assumed.texts
    return {
        "weights": question.target.weights,
        "draft_weights": question.draft.weights,
        "cache_bits": question.target.cache_bits,
        "context": None if texts is None else texts.prompt_length,
        "new_tokens": question.record.max_new_tokens,
    }


def _speedup_entry(plan: PlatformPlan) -> dict[str, Any] | None:
    """Return the speed of the fastest speculation, recommended or not, over plain decoding."""
    if plan.drafting is None:
        return None
    names = plan.names
    of, over = (names[one.schedule] for one in (plan.drafting, plan.plain))
    return (ratio_entry(plan.comparison) or {}) | {"of": of, "over": over}


def _bar_entry(one: TornadoBar) -> dict[str, Any]:
    turn = one.turn
    return {
        **picked(one.number, "field value low high status"),
        **picked(one, "effect_low effect_high speedup_low speedup_high"),
        "flips_at": None if turn is None else turn.at,
        "flips_to": None if turn is None else {"side": turn.side, "leader": str(turn.leader)},
    }


def sweep_entry(numbers: Sequence[SweptNumber], cells: Sequence[SweepCell]) -> dict[str, Any]:
    """Return the answers over a grid, and between which neighbours the fastest way changes."""

    def entry(one: SweepCell) -> dict[str, Any]:
        found = one.standing
        return {
            "values": list(one.values),
            "best": None if found is None else str(found.leader),
            "speedup": None if found is None else found.speedup,
            "speculation": found and found.speculation and str(found.speculation),
            "tpot_s": None if found is None else found.times_s[found.leader],
            "with_device": None
            if found is None or one.there is None
            else {"place": str(one.there), "speedup": found.plain_s / found.times_s[one.there]},
            "break_even": one.even.at,
            **picked(one.even, "always never"),
            "refused": one.refused,
        }

    return {
        "fields": [one.field for one in numbers],
        "cells": [entry(one) for one in cells],
        "turns": [{"between": [list(one.values), list(other.values)]} for one, other in turns(cells)],
    }


def measured_entries(runs: ComparedRuns, plan: PlatformPlan) -> dict[str, Any]:
    """Return the runs with their predictions, and the runs that the plan cannot predict."""
    return {
        "measured": [_measured_entry(one, plan.names) for one in runs.compared],
        "measured_left_out": [
            {"name": one.name, "schedule": schedule_entry(one.run.schedule), "reason": one.reason}
            for one in runs.left_out
        ],
        "measured_warnings": list(runs.warnings),
    }


def _measured_entry(one: BesideMeasured, names_of: Mapping[Schedule, str]) -> dict[str, Any]:
    names = "tpot_s mean_acceptance_length"
    return {
        "name": names_of[one.schedule] + one.run.caveat if one.schedule in names_of else one.name,
        "place": one.place,
        "schedule": schedule_entry(one.run.schedule),
        "planned_schedule": schedule_entry(one.schedule),
        "predicted": picked(one.prediction, f"{names} tpot_s_low tpot_s_high"),
        "measured": picked(one.run, names),
        **picked(one, "is_inside error"),
    }


def _named(plan: PlatformPlan, one: PlannedSchedule | None) -> dict[str, Any]:
    """Return name, schedule and placement of a schedule, as in the plan's ranking; Nones for no schedule."""
    if one is None:
        return dict.fromkeys(("name", "schedule", "placement"))
    placement = picked(one.pair, "target draft")
    return {"name": plan.names[one.schedule], "schedule": schedule_entry(one.schedule), "placement": placement}


def draft_entry(choice: DraftChoice) -> dict[str, Any]:
    """Return one of several drafts, compared with the fastest."""
    plan, best = choice.plan, choice.best
    return {
        "draft": choice.name,
        **_named(plan, best),
        "tpot_s": None if best is None else best.tpot_s,
        "speedup": _speedup_entry(plan),
        "acceptance": picked(plan.question.acceptance, "value low high status source"),
        "break_even": None if plan.needed is None else plan.needed.at,
        "acceptance_to_lead": choice.acceptance_to_lead,
    }


def machine_entry(choice: MachineChoice) -> dict[str, Any]:
    """Return one of several machines, with its recommended schedule."""
    if choice.refused:
        return {"platform": choice.name, "refused": choice.refused}
    draft = choice.drafts[0]
    plan, best = draft.plan, draft.plan.recommended
    return {
        "platform": choice.name,
        "draft": draft.name,
        "weights": plan.question.target.weights,
        **_named(plan, best),
        **picked(best, _OF_A_ROW),
        "plain_tpot_s": plan.plain.tpot_s,
        "held_back": held_back(plan),
        "pays": plan.pays,
        "speedup": _speedup_entry(plan),
    }


def batch_entry(batches: BatchPlan, plan: PlatformPlan) -> dict[str, Any]:
    """Return the best speculation and plain decoding by batch size."""
    names = plan.names

    def rates(one: BatchPrediction | None) -> dict[str, Any] | None:
        if one is None:
            return None
        return {
            "schedule": schedule_entry(one.schedule),
            **picked(one, "tokens_per_s tpot_s"),
            "runs_on": [engine._asdict() for engine in engines_of_batch(plan, one)],
        }

    def best(choice: BatchChoice) -> dict[str, Any]:
        return {
            "best_window": choice.best_window,
            "name": choice.name if choice.drafting is None else names.get(choice.drafting.schedule, choice.name),
            "placement": None if choice.pair is None else picked(choice.pair, "target draft"),
            "drafting": rates(choice.drafting),
            "speedup": choice.speedup,
        }

    return {
        "verdict": batches.in_words,
        "switch_off_at": batches.switch_off_at,
        "sizes": [
            {
                "batch_size": size,
                **best(choice),
                "plain": rates(choice.plain),
                "by_engine": None if choice.by_engine is None else best(choice.by_engine),
            }
            for size, choice in batches.choices.items()
        ],
        "left_out": list(batches.left_out),
    }
