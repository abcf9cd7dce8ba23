"""The page of a plan: one HTML file that opens offline and lists every number that the answer depends on.

It shows the four arms of the Mirror-SD paper (arXiv 2510.13161): in turn and mirror, each without and with streams. If
no stream rates were recorded or given, the arms assume those of the paper; the ranking then has no streams at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from costs.prices import Prices
from decoding.schedule import Schedule
from planner.page_template import rendered
from planner.pictures.plan_pictures import (
    costs_over_rows,
    drafts_over_acceptance,
    first_rounds,
    machine_of,
    speedups_over_acceptance,
    trade_offs,
)
from planner.plan_engines import best_with_engine, engine_of_batch, engines_of
from planner.platform_plan.advice import advice
from planner.platform_plan.batches import BatchPlan
from planner.platform_plan.changed_numbers.number_sweep import SweepCell, SweptNumber
from planner.platform_plan.changed_numbers.tornado import TornadoBar
from planner.platform_plan.choices import MachineChoice
from planner.platform_plan.default_acceptance import STREAMS_SOURCE
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.measured_run import ComparedRuns
from planner.platform_plan.platform_plan import PlatformPlan, best_of_each
from planner.platform_plan.ranked_schedules import UNTRAINED, PlannedSchedule, schedule_names_of
from planner.wording import schedule_name
from sim.evaluator import Evaluator

_MOST_ROWS: Final = 40
_MOST_BARS: Final = 8
_Timed = tuple[float, Schedule, LanePair]
"""A predicted time per token (seconds), its schedule and its placement."""


class Arm(NamedTuple):
    """The fastest schedule of one of the paper's arms; None where none can be predicted.

    `label` is the schedule's name; `speedup` is over the fastest plain decoding.
    """

    name: str
    schedule: Schedule | None = None
    pair: LanePair | None = None
    label: str = ""
    tpot_s: float = 0.0
    speedup: float = 0.0


def render_page(
    plan: PlatformPlan,
    *,
    batches: BatchPlan | None = None,
    bars: Sequence[TornadoBar] = (),
    measured: ComparedRuns | None = None,
    machines: Sequence[MachineChoice] = (),
    swept: Sequence[SweptNumber] = (),
    cells: Sequence[SweepCell] = (),
) -> str:
    """Return the page as text; all but the plan is optional. `machines`: those that were compared, its own first."""
    runs, drafts = () if measured is None else measured.compared, machines[0].drafts if machines else ()
    question, chosen = plan.question, plan.recommended.schedule
    leaders, arms = best_of_each(plan.ranking)[:_MOST_ROWS], four_arms(plan)
    names, verdict, runnable = schedule_names_of(leaders), advice(plan), best_with_engine(plan)
    return rendered(
        Path(__file__).with_name("plan_page.html"),
        plan=plan,
        verdict=verdict,
        warnings=verdict.warnings,
        command=None if runnable is None else next(iter(engines_of(plan, runnable)), None),
        rows=list(zip(names, leaders, strict=True)),
        machine=machine_of(question.platform, plan.profile, chosen, (str(question.target), str(question.draft))),
        costs_over_rows=costs_over_rows(
            Prices(plan.profile, plan.costs),
            (one.schedule.target_lane for one in leaders),
            float(question.record.contexts.start),
        ),
        speedups=speedups_over_acceptance(plan, leaders, names) if plan.drafting else None,
        trade_offs=list(trade_offs(leaders, names)),
        first_rounds=first_rounds(chosen, plan.profile, question.record, plan.costs),
        arms=arms if any(arm.schedule for arm in arms) else (),
        streams=_streams(plan),
        batches=batches,
        engine_of_batch=partial(engine_of_batch, plan),
        measured=runs,
        machines=machines if len(machines) > 1 else (),
        highest=max((1 / one.drafts[0].plan.recommended.tpot_s_low for one in machines if one.drafts), default=1.0),
        drafts=drafts if len(drafts) > 1 else (),
        drafts_over_acceptance=drafts_over_acceptance(drafts) if any(one.times_s for one in drafts) else "",
        measured_in_words="" if measured is None else measured.in_words,
        longest=max((max(one.prediction.tpot_s_high, one.run.tpot_s) for one in runs), default=1.0),
        bars=bars[:_MOST_BARS],
        swept=swept,
        cells=cells,
        fastest=max((max(bar.speedup_low, bar.speedup_high, 1.0) for bar in bars), default=1.0),
    )


def _streams(plan: PlatformPlan) -> str:
    question = plan.question
    if question.record.num_streams:
        return "as assumed below" if question.record.assumed else "as recorded"
    return "not known, since the record has no streams" if question.record_with_streams is None else STREAMS_SOURCE


def four_arms(plan: PlatformPlan) -> tuple[Arm, ...]:
    """Return the arms in the order of the paper's ablations."""
    found: list[Arm] = []
    drafting = [one for one in plan.ranking if one.schedule.traits.has_draft_model and not one.schedule.draft_streams]
    for name, overlaps in (("SD", False), ("Mirror-SD", True)):
        ranked = [one for one in drafting if one.schedule.traits.overlaps == overlaps]
        found.append(_fastest(plan, name, ((one.tpot_s, one.schedule, one.pair) for one in ranked)))
        found.append(_fastest(plan, f"{name} + streams", _with_streams(plan, ranked)))
    return tuple(found)


def _with_streams(plan: PlatformPlan, ranked: Sequence[PlannedSchedule]) -> Iterator[_Timed]:
    """Yield the best ranked schedule of every placement, root source and window, with streams added."""
    streaming = plan.question.record_with_streams
    if streaming is None:
        return
    evaluator, asked = Evaluator(plan.profile, streaming, costs=plan.costs), set[object]()
    for one in ranked:
        window = one.schedule.num_speculative_tokens
        key = (one.pair, one.schedule.root_source, window)
        # Streams guess nothing in the first step, nor after the last token.
        num_streams = min(streaming.num_streams, window - 2)
        if key in asked or num_streams < 1:
            continue
        asked.add(key)
        schedule = one.schedule.model_copy(update={"draft_streams": num_streams})
        if evaluator.missing(schedule) is None:
            yield evaluator.predict(schedule).tpot_s, schedule, one.pair


def _fastest(plan: PlatformPlan, name: str, found: Iterable[_Timed]) -> Arm:
    best = min(found, key=lambda one: one[0], default=None)
    if best is None:
        return Arm(name)
    tpot_s, schedule, pair = best
    mark = UNTRAINED if schedule.exit_layer is not None and not plan.question.has_exits else ""
    label = f"{schedule_name(schedule, pair.placement)}{mark}"
    return Arm(name, schedule, pair, label, tpot_s, plan.plain.tpot_s / tpot_s)
