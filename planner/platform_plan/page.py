"""The page of a plan: one HTML file that opens offline and says what the answer rests on, number by number."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from decoding.yaml_file import write_atomically
from planner.page_template import page_template
from planner.platform_plan.advice import advice, schedule_names_of
from planner.platform_plan.batches import BatchPlan
from planner.platform_plan.default_acceptance import STREAMS_SOURCE
from planner.platform_plan.four_arms import four_arms
from planner.platform_plan.platform_plan import PlatformPlan, best_of_each
from planner.wording import between, factor, milliseconds

_MOST_ROWS: Final = 40


def write_page(plan: PlatformPlan, path: Path, batches: BatchPlan | None = None) -> None:
    """Write the page atomically."""
    write_atomically(path, render_page(plan, batches))


def render_page(plan: PlatformPlan, batches: BatchPlan | None = None) -> str:
    """Return the page as text; of batches too, where that was asked."""
    filters = {one.__name__: one for one in (between, factor, milliseconds)}
    leaders, arms = best_of_each(plan.ranking)[:_MOST_ROWS], four_arms(plan)
    return page_template(Path(__file__).with_name("page.html"), filters).render(
        plan=plan,
        verdict=advice(plan),
        rows=list(zip(schedule_names_of(leaders), leaders, strict=True)),
        slowest_s=max(one.tpot_s_high for one in leaders),
        arms=arms if any(arm.schedule for arm in arms) else (),
        streams=_streams(plan),
        batches=batches,
    )


def _streams(plan: PlatformPlan) -> str:
    """Return what the arms with streams stand on."""
    question = plan.question
    if question.record.num_streams:
        return "as often right as " + ("assumed below" if question.record.assumed else "recorded")
    return "not known: the record has none" if question.record_with_streams is None else STREAMS_SOURCE
