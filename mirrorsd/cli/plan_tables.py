"""Tables that `mirrorsd plan` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.markup import escape
from rich.table import Table

from mirrorsd.cli.sheet_text import amount
from mirrorsd.cli.tables import plain_table
from planner.platform_plan.advice import UNTRAINED, engines_of
from planner.platform_plan.batches import BatchPlan
from planner.platform_plan.choices import DraftChoice, MachineChoice
from planner.platform_plan.held_against.measured_run import BesideMeasured
from planner.platform_plan.platform_plan import PlatformPlan, best_of_each
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.platform_plan.trade_offs import pareto
from planner.platform_plan.what_turns.number_sweep import SweepCell, SweptNumber, turns
from planner.platform_plan.what_turns.tornado import TornadoBar
from planner.wording import between, factor, in_ms, milliseconds, percent, schedule_name, seconds

_WIDE_ENOUGH: Final = 125
"""Characters in which all columns of a ranking find room."""
_FOR_WIDE: Final = ("interval", "J", "runs on")
_LEGEND: Final = "~ not distinguishable from the best   * Pareto-optimal in time, energy and money per token"


def place_table(plan: PlatformPlan, top: int, width: int) -> Table:
    """Return the best `top` of every method and place; a column that nothing is known for is left out.

    What needs training is there where it would be the fastest.
    """
    leaders = [one for one in best_of_each(plan.ranking) if not one.needs_training or one.tpot_s < plan.best.tpot_s][
        :top
    ]
    front = set(map(id, pareto(plan.ranking)))
    rows = [_row(plan, one) for one in leaders]
    known = [
        name for name in rows[0] if any(row[name] for row in rows) and (width >= _WIDE_ENOUGH or name not in _FOR_WIDE)
    ]
    table = plain_table(
        "Best of every method and place, predicted per token", ("", "schedule", "target", "draft"), known
    )
    pairs = [one.pair for one in leaders if one.schedule.draft_lane and one.pair.is_two_streams]
    streams = dict.fromkeys(f"{pair.draft}: a second stream of {pair.target}" for pair in pairs)
    told = f"{_LEGEND}, of {len(plan.ranking):,} schedules"
    table.caption, table.caption_justify = "   ".join((told, *map(escape, streams))), "left"
    for one, row in zip(leaders, rows, strict=True):
        placed = one.pair.target, one.pair.draft if one.schedule.draft_lane else "\u2013"
        mark = "*" if id(one) in front else ""
        table.add_row(mark, *map(escape, (_name(one), *placed)), *(row[name] or "\u2013" for name in known))
    return table


def _name(one: PlannedSchedule) -> str:
    """Name a schedule; where it runs, columns say."""
    return (
        schedule_name(one.schedule, one.placement).removesuffix(f", {one.placement}") + UNTRAINED * one.needs_training
    )


def _row(plan: PlatformPlan, one: PlannedSchedule) -> dict[str, str]:
    """Return what is shown of a schedule, by heading; nothing for what nobody knows."""
    beside = plan.compared(one, plan.best)
    joules, dollars = one.energy_j_per_token, one.usd_per_million_tokens
    first_s, engines = one.ttft_s, engines_of(plan, one)
    return {
        "ms": in_ms(one.tpot_s),
        "interval": between(one.tpot_s_low, one.tpot_s_high),
        "vs plain": factor(one.speedup),
        "vs best": factor(beside.value) + "~" * (beside.outcome == "cannot tell" and one is not plan.best),
        "first token": "" if first_s is None else milliseconds(first_s) if first_s < 1 else seconds(first_s),
        "GB": f"{one.memory_bytes / 1e9:.3g}",
        "J": "" if joules is None else f"{joules:.2g}",
        "$/M": "" if dollars is None else f"{dollars:.2f}",
        "runs on": engines[0].engine if engines else "none known",
    }


def tornado_table(bars: Sequence[TornadoBar]) -> Table:
    """Return the numbers that the answer turns on."""
    turned = any(bar.turn for bar in bars)
    title = (
        "What would change the answer"
        if turned
        else "What matters most; within these ranges the same place stays first"
    )
    table = plain_table(title, ("number", "now", "from", "to", "speed-up from, to", "changes at"))
    for bar in bars:
        number = bar.number
        now, low, high = (amount(number.field, value) for value in (number.value, number.low, number.high))
        ends = f"{factor(bar.speedup_low)} to {factor(bar.speedup_high)}"
        turn = f"{bar.turn.side} {amount(number.field, bar.turn.at)}: {bar.turn.leader}" if bar.turn else "\u2013"
        table.add_row(escape(number.field), now, low, high, ends, turn)
    return table


def sweep_table(numbers: Sequence[SweptNumber], cells: Sequence[SweepCell]) -> Table:
    """Return the answer at every point; a mark where another way leads than at the point before."""
    turned = {id(other) for _, other in turns(cells)}
    fields = [one.field for one in numbers]
    right = ("ms", "speed-up", "breaks even at", f"with {fields[0].rpartition('.')[0]}")
    table = plain_table("Over these values", (*fields, "", "best"), right)
    for cell in cells:
        values = [amount(field, value) for field, value in zip(fields, cell.values, strict=True)]
        found = cell.standing
        if found is None:
            table.add_row(*values, "", escape(str(cell.refused)), *["\u2013"] * 4)
            continue
        even = "\u2013" if cell.break_even is None else percent(cell.break_even)
        mark = "turns" if id(cell) in turned else ""
        leader = found.leader
        own = "\u2013" if cell.there is None else factor(found.plain_s / found.times_s[cell.there])
        table.add_row(*values, mark, str(leader), in_ms(found.times_s[leader]), factor(found.speedup), even, own)
    return table


def draft_table(drafts: Sequence[DraftChoice]) -> Table:
    """Return several drafts, the fastest first, and what acceptance would put each of the others first."""
    heads = ("draft", "best schedule", "place"), ("ms", "vs plain", "accepted", "breaks even", "leads from")
    table = plain_table("Drafts, each by what is assumed of its acceptance", *heads)
    for one in drafts:
        plan, best = one.plan, one.best
        if best is None:
            table.add_row(escape(one.name), "none that fits", *["\u2013"] * 6)
            continue
        needed = None if plan.needed is None else plan.needed.at
        rates = [plan.question.acceptance.value, needed, one.acceptance_to_lead]
        table.add_row(
            *map(escape, (one.name, _name(best), best.place)),
            in_ms(best.tpot_s),
            factor(best.speedup),
            *("\u2013" if rate is None else percent(rate) for rate in rates),
        )
    return table


def measured_table(found: Sequence[BesideMeasured], width: int) -> Table:
    """Return runs beside what was predicted of them; per round too, where there is room."""
    heads = ["ms", "interval", "measured", ""]
    if width >= _WIDE_ENOUGH:
        heads += ["ms a round", "measured", "tokens a round", "measured"]
    table = plain_table("Predicted beside measured, per token", ("schedule", "place"), heads)
    for one in found:
        predicted, run = one.prediction, one.run
        cells = (
            in_ms(predicted.tpot_s),
            between(predicted.tpot_s_low, predicted.tpot_s_high),
            in_ms(run.tpot_s),
            "inside" if one.is_inside else "outside",
            *map(in_ms, one.round_s),
            f"{predicted.mean_acceptance_length:.2f}",
            f"{run.mean_acceptance_length:.2f}",
        )
        table.add_row(*map(escape, (one.name, one.place)), *cells[: len(heads)])
    return table


def machine_table(machines: Sequence[MachineChoice]) -> Table:
    """Return several machines, the fastest first, by what is recommended on each."""
    heads = ("platform", "weights", "best", "place", "pays"), ("tokens/s", "plain", "first token", "GB", "J", "$/M")
    table = plain_table("Machines, each with what is recommended on it", *heads)
    for machine in machines:
        if machine.refused:
            table.add_row(escape(machine.name), "", escape(machine.refused))
            continue
        plan = machine.drafts[0].plan
        best = plan.recommended
        row = _row(plan, best)
        table.add_row(
            *map(escape, (machine.name, plan.question.target.weights, _name(best), best.place)),
            plan.pays.replace("_", " "),
            f"{1 / best.tpot_s:.3g}",
            f"{1 / plan.plain.tpot_s:.3g}",
            *(row[name] or "\u2013" for name in ("first token", "GB", "J", "$/M")),
        )
    return table


def batch_table(found: BatchPlan) -> Table:
    """Return the best speculation next to plain decoding, by batch size."""
    title = "Several sequences at once: predicted tokens per second of all together"
    table = plain_table(title, ("at once", "best speculation", "place"), ("tokens/s", "plain", "times plain"))
    for size, choice in found.choices.items():
        own = "\u2013" if choice.drafting is None else f"{choice.drafting.tokens_per_s:.1f}"
        times = "\u2013" if choice.speedup is None else factor(choice.speedup)
        place = str(choice.pair or "\u2013")
        table.add_row(str(size), choice.name, place, own, f"{choice.plain.tokens_per_s:.1f}", times)
    return table
