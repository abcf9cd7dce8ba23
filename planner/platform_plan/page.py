"""The page of a plan: one HTML file that opens offline and says what the answer rests on, number by number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from decoding.schedule import Schedule
from decoding.yaml_file import write_atomically
from planner.page_template import page_template
from planner.platform_plan.advice import UNTRAINED, advice, interval, schedule_names_of
from planner.platform_plan.batches import BatchPlan, names_of
from planner.platform_plan.default_acceptance import STREAMS_SOURCE
from planner.platform_plan.four_arms import Arm, four_arms
from planner.platform_plan.platform_plan import PlatformPlan, best_of_each
from planner.wording import factor, milliseconds, schedule_names

_MOST_ROWS: Final = 40


def write_page(plan: PlatformPlan, path: Path, batches: BatchPlan | None = None) -> None:
    """Write the page atomically."""
    write_atomically(path, render_page(plan, batches))


def render_page(plan: PlatformPlan, batches: BatchPlan | None = None) -> str:
    """The page as text; of batches too, where that was asked."""
    filters: dict[str, Callable[..., str]] = {
        "milliseconds": milliseconds,
        "factor": factor,
        "interval": interval,
    }
    leaders = best_of_each(plan.ranking)[:_MOST_ROWS]
    return page_template(Path(__file__).with_name("page.html"), filters).render(
        plan=plan,
        verdict=advice(plan),
        rows=list(zip(schedule_names_of(leaders), leaders, strict=True)),
        slowest_s=max(one.tpot_s_high for one in leaders),
        arms=_arms(plan),
        streams=_streams(plan),
        batches=batches,
        batch_rows=[] if batches is None else list(zip(names_of(batches), batches.choices.items(), strict=True)),
    )


def _arms(plan: PlatformPlan) -> list[tuple[Arm, str]]:
    """The paper's arms and the names of their schedules; nothing where no arm can be predicted."""
    arms = four_arms(plan)
    asked = [(arm.schedule, arm.pair) for arm in arms if arm.schedule is not None and arm.pair is not None]
    names = iter(schedule_names([(schedule, "in turn" if pair.in_turn else "split") for schedule, pair in asked]))
    named = [(arm, "" if arm.schedule is None else next(names) + _mark(plan, arm.schedule)) for arm in arms]
    return named if asked else []


def _mark(plan: PlatformPlan, schedule: Schedule) -> str:
    return UNTRAINED if schedule.exit_layer is not None and not plan.question.has_exits else ""


def _streams(plan: PlatformPlan) -> str:
    """What the arms with streams stand on."""
    question = plan.question
    if question.record.num_streams:
        return "as often right as " + ("assumed below" if question.record.assumed else "recorded")
    return "not known: the record has none" if question.record_with_streams is None else STREAMS_SOURCE
