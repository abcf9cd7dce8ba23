"""The tables that verbs print."""

from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.table import Table

from planner.plan_engines import engine_of_batch, engines_of
from planner.platform_plan.batches import BatchPlan
from planner.platform_plan.changed_numbers.number_sweep import SweepCell, SweptNumber, turns
from planner.platform_plan.changed_numbers.tornado import TornadoBar
from planner.platform_plan.choices import DraftChoice, MachineChoice
from planner.platform_plan.measured_run import ComparedRuns
from planner.platform_plan.platform_plan import PlatformPlan, best_of_each
from planner.platform_plan.ranked_schedules import UNTRAINED, PlannedSchedule
from planner.platform_plan.trade_offs import pareto
from planner.wording import amount, between, digits, duration, factor, in_ms, percent, schedule_name

if TYPE_CHECKING:
    from planner.plan import Plan

NOTHING: Final = "\N{EN DASH}"
"""The content of a cell without a known value."""
_WIDE_ENOUGH: Final = 145
"""Width of a terminal (characters) from which on an outcome is printed with all columns."""
_NARROW: Final = {
    "predicted": "pred.",
    "measured": "meas.",
    "error": "error",
    "corrected error": "corr.",
    "rounds": "rounds",
}
"""Columns of an outcome on a narrow terminal, and their headings there."""
_OF_OWN_PROMPTS: Final = {"prompts", "plain there"}
"""Columns that are printed only if some schedules ran fewer prompts than others."""
_WIDE_RANKING: Final = 125
"""Width of a terminal (characters) from which on a ranking is printed with all columns."""
_FOR_WIDE: Final = ("interval", "J", "runs on")
_LEGEND: Final = "~ not distinguishable from the best   * Pareto-optimal in time, energy and money per token"


def plain_table(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = ""
) -> Table:
    """Return a table without frames, so that it can be copied.

    Columns `left` are text without markup; columns `right` are numbers, which may have rich's markup. A row may have
    fewer cells than columns.
    """
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False, title_style="bold")
    table.caption, table.caption_justify = escape(caption) or None, "left"
    for heading in left:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row[: len(left)]), *row[len(left) :])
    return table


def share(value: float) -> str:
    """Return a share in percent; a dash for NaN."""
    return "-" if isnan(value) else percent(value)


def ranking(found: "Plan", top: int) -> Table:
    """Return the fastest `top` candidates and the recommended one, which has a star if it is not the fastest."""
    candidates, best = found.search.candidates, found.recommended
    title = f"Fastest of {len(candidates):,} schedules: predicted ms per token"
    star = "*" if best is not candidates[0] else ""
    if star:
        title += " (*: recommended, chosen on one half of the prompts and judged on the other)"
    shown = candidates[:top] if best in candidates[:top] else (*candidates[:top], best)
    names = found.search.names
    rows = (
        (
            names[one.schedule] + star * (one is best),
            in_ms(one.prediction.tpot_s),
            between(one.prediction.tpot_s_low, one.prediction.tpot_s_high),
            f"{one.prediction.mean_acceptance_length:.2f}",
            share(one.prediction.reuse_rate),
        )
        for one in shown
    )
    return plain_table(title, ("schedule",), ("ms", "interval", "tokens/round", "hits"), rows)


def outcome_table(result: Mapping[str, Any], *, width: int) -> Table:
    """Return predicted and measured times, the winner bold, with fewer columns on a narrow terminal."""
    entries = result["schedules"]
    rows = [_outcome_row(entry) for entry in entries]
    if len({row["prompts"] for row in rows}) == 1:
        rows = [{name: value for name, value in row.items() if name not in _OF_OWN_PROMPTS} for row in rows]
    if width < _WIDE_ENOUGH:
        rows = [{short: row[heading] for heading, short in _NARROW.items()} for row in rows]
    names = [entry["name"] + " (a lane died)" * entry["lost_lane"] for entry in entries]
    title = "Milliseconds per token; errors as measured, and corrected for machine speed"
    cells = ((name, *row.values()) for name, row in zip(names, rows, strict=True))
    table = plain_table(title, ("schedule",), tuple(rows[0]), cells)
    for entry, line in zip(entries, table.rows, strict=True):
        line.style = "bold" if entry["name"] == result.get("winner") else None
    return table


def _outcome_row(entry: Mapping[str, Any]) -> dict[str, str]:
    predicted, measured = entry["predicted"], entry["measured"]
    plain_s, ttft, speedup = entry.get("plain_tpot_s"), entry.get("ttft"), entry["speedup_measured"]
    return {
        "predicted": in_ms(predicted["tpot_s"]),
        "interval": between(predicted["tpot_s_low"], predicted["tpot_s_high"]),
        "measured": in_ms(measured["tpot_s"]),
        "error": f"{entry['tpot_error']:+.1%}",
        "corrected error": f"{entry['tpot_error_at_anchor']:+.1%}",
        "prompts": str(entry.get("num_prompts", "-")),
        "plain there": "-" if plain_s is None else in_ms(plain_s),
        "speed-up": "-" if speedup is None else _speedup(**speedup),
        "tokens/round": f"{measured['mean_acceptance_length']:.2f}",
        "hits": share(measured["reuse_rate"]),
        "first token": "-" if ttft is None else f"{in_ms(ttft['measured_s'])} ({ttft['error']:+.0%})",
        "rounds": _rounds(entry),
    }


def _speedup(value: float, low: float | None, high: float | None) -> str:
    """Return a measured speed-up over plain decoding, with its interval."""
    return f"{value:.2f}" if low is None or low == high else f"{value:.2f} ({low:.2f}-{high:.2f})"


def _rounds(entry: Mapping[str, Any]) -> str:
    """Say whether the measured rounds equal the simulated ones; in red if they should but do not."""
    equal, of = entry["rounds_equal"]["equal"], entry["rounds_equal"]["of"]
    text = "same" if equal == of else f"{of - equal} of {of} differ"
    return f"[red]{text}[/]" if entry["rounds_alarm"] else text


def place_table(plan: PlatformPlan, top: int, width: int) -> Table:
    """Return the best `top` of every method and placement; those that need training only if they beat all others."""
    best = [one for one in best_of_each(plan.ranking) if not one.needs_training or one.tpot_s < plan.best.tpot_s]
    leaders, front = best[:top], set(map(id, pareto(plan.ranking)))
    rows = [_row(plan, one) for one in leaders]
    known = [
        name for name in rows[0] if any(row[name] for row in rows) and (width >= _WIDE_RANKING or name not in _FOR_WIDE)
    ]
    pairs = [one.pair for one in leaders if one.schedule.draft_lane and one.pair.is_two_streams]
    streams = dict.fromkeys(f"{pair.draft}: a second stream of {pair.target}" for pair in pairs)
    cells = (
        (
            "*" if id(one) in front else "",
            _name(one),
            one.pair.target,
            one.pair.draft if one.schedule.draft_lane else NOTHING,
            *(row[name] or NOTHING for name in known),
        )
        for one, row in zip(leaders, rows, strict=True)
    )
    title = "Best of every method and placement, predicted per token"
    caption = "   ".join((f"{_LEGEND}, of {len(plan.ranking):,} schedules", *streams))
    return plain_table(title, ("", "schedule", "target", "draft"), known, cells, caption=caption)


def _name(one: PlannedSchedule) -> str:
    """Return the name of a schedule without its placement, which has columns of its own."""
    name = schedule_name(one.schedule, one.placement).removesuffix(f", {one.placement}")
    return name + UNTRAINED * one.needs_training


def _row(plan: PlatformPlan, one: PlannedSchedule) -> dict[str, str]:
    """Return the cells of a schedule, by heading; empty if the value is not known."""
    beside = plan.compared(one, plan.best)
    joules, dollars = one.energy_j_per_token, one.usd_per_million_tokens
    first_s, engines = one.ttft_s, engines_of(plan, one)
    return {
        "ms": in_ms(one.tpot_s),
        "interval": between(one.tpot_s_low, one.tpot_s_high),
        "vs plain": factor(one.speedup),
        "vs best": factor(beside.value) + "~" * (beside.outcome == "cannot tell" and one is not plan.best),
        "first token": "" if first_s is None else duration(first_s),
        "GB": digits(one.memory_bytes / 1e9),
        "J": "" if joules is None else f"{joules:.2g}" if joules < 10 else digits(joules),
        "$/M": "" if dollars is None else f"{dollars:.2f}",
        "runs on": engines[0].engine if engines else "none known",
    }


def tornado_table(bars: Sequence[TornadoBar]) -> Table:
    """Return the numbers that matter most for the answer."""
    turning = any(bar.turn for bar in bars)
    title = "What would change the answer" if turning else "Numbers that matter most (none changes the best placement)"
    header = ("number", "now", "from", "to", "speed-up from, to", *["changes at"] * turning)
    rows = []
    for bar in bars:
        number = bar.number
        values = [amount(number.field, value) for value in (number.value, number.low, number.high)]
        ends = f"{factor(bar.speedup_low)} to {factor(bar.speedup_high)}"
        turn = f"{bar.turn.side} {amount(number.field, bar.turn.at)}: {bar.turn.leader}" if bar.turn else NOTHING
        rows.append((number.field, *values, ends, *[turn] * turning))
    return plain_table(title, header, (), rows)


def sweep_table(numbers: Sequence[SweptNumber], cells: Sequence[SweepCell]) -> Table:
    """Return the answer at every value, marked where the fastest way changes; a grid for two numbers."""
    if len(numbers) > 1:
        return _sweep_grid(numbers[0], numbers[1], cells)
    turned = {id(other) for _, other in turns(cells)}
    fields = [one.field for one in numbers]
    # Only for a device that can draft: a memory or a link cannot.
    own_head = [f"with {fields[0].rpartition('.')[0]}"] if any(cell.there is not None for cell in cells) else []
    right = ("ms", "speculation", "breaks even at", *own_head)
    rows = []
    for cell in cells:
        values = [amount(field, value) for field, value in zip(fields, cell.values, strict=True)]
        found = cell.standing
        if found is None:
            rows.append([*values, "", str(cell.refused), *[NOTHING] * len(right)])
            continue
        own = NOTHING if cell.there is None else factor(found.plain_s / found.times_s[cell.there])
        told = [in_ms(found.times_s[found.leader]), factor(found.speedup), cell.even.breaks_even, own]
        rows.append([*values, "changes" if id(cell) in turned else "", str(found.leader), *told[: len(right)]])
    return plain_table("Over these values", (*fields, "", "best"), right, rows)


def _sweep_grid(down: SweptNumber, across: SweptNumber, cells: Sequence[SweepCell]) -> Table:
    """Return the speed-up at every point, of the fastest way that uses the first number's device, if any."""
    has_own = any(cell.there is not None for cell in cells)

    def told(cell: SweepCell) -> str:
        found = cell.standing
        way = None if found is None else cell.there if has_own else found.leader
        if found is None or way is None:
            return NOTHING
        return factor(found.plain_s / found.times_s[way]) + "*" * (has_own and way == found.leader)

    rows = (
        (amount(down.field, value), *(told(cell) for cell in cells if cell.values[0] == value)) for value in down.values
    )
    leaders = dict.fromkeys(str(cell.standing.leader) for cell in cells if cell.standing is not None)
    refused = dict.fromkeys(str(cell.refused) for cell in cells if cell.standing is None)
    whose = f" with {down.field.rpartition('.')[0]}" * has_own
    return plain_table(
        f"Speed-up over plain decoding{whose}; across: {across.field}",
        (down.field,),
        [amount(across.field, value) for value in across.values],
        rows,
        caption="; ".join((*["* the fastest of all ways"] * has_own, f"fastest: {', '.join(leaders)}", *refused)),
    )


def draft_table(drafts: Sequence[DraftChoice]) -> Table:
    """Return several drafts, the fastest first, and from which acceptance on each other one would be the fastest."""
    rows: list[tuple[str, ...]] = []
    for one in drafts:
        plan, best = one.plan, one.best
        if best is None:
            rows.append((one.name, "none that fits", *[NOTHING] * 6))
            continue
        even = NOTHING if plan.needed is None else plan.needed.breaks_even
        leads = NOTHING if one.acceptance_to_lead is None else percent(one.acceptance_to_lead)
        told = in_ms(best.tpot_s), factor(best.speedup), percent(plan.question.acceptance.value), even, leads
        rows.append((one.name, _name(best), best.place, *told))
    heads = ("draft", "best schedule", "placement"), ("ms", "vs plain", "accepted", "breaks even", "fastest from")
    return plain_table("Drafts, each with its assumed acceptance", *heads, rows)


def measured_table(found: ComparedRuns, width: int) -> Table:
    """Return measured runs and their predictions; on a wide terminal also per round."""
    heads = ["ms", "interval", "measured", "", "ms a round", "measured", "tokens a round", "measured"]
    heads = heads[: None if width >= _WIDE_RANKING else 4]
    rows = []
    for one in found.compared:
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
        rows.append((one.name, one.place, *cells[: len(heads)]))
    return plain_table("Predicted and measured, per token", ("schedule", "placement"), heads, rows)


def machine_table(machines: Sequence[MachineChoice]) -> Table:
    """Return several machines, the fastest first, with the recommended schedule of each."""
    rows: list[tuple[str, ...]] = []
    for machine in machines:
        if machine.refused:
            rows.append((machine.name, "", machine.refused))
            continue
        plan = machine.drafts[0].plan
        best = plan.recommended
        row = _row(plan, best)
        left = machine.name, plan.question.target.weights, _name(best), best.place, plan.pays.replace("_", " ")
        speeds = digits(1 / best.tpot_s), digits(1 / plan.plain.tpot_s)
        rows.append((*left, *speeds, *(row[name] or NOTHING for name in ("first token", "GB", "J", "$/M"))))
    heads = ("platform", "weights", "best", "placement", "pays"), ("tokens/s", "plain", "first token", "GB", "J", "$/M")
    return plain_table("Machines, each with its recommended schedule", *heads, rows)


def batch_table(found: BatchPlan, plan: PlatformPlan) -> Table:
    """Return the best speculation and plain decoding, by batch size."""
    rows = (
        (
            str(size),
            choice.name,
            str(choice.pair or NOTHING),
            NOTHING if choice.drafting is None else f"{choice.drafting.tokens_per_s:.1f}",
            f"{choice.plain.tokens_per_s:.1f}",
            NOTHING if choice.speedup is None else factor(choice.speedup),
            engine_of_batch(plan, choice.drafting),
        )
        for size, best in found.choices.items()
        for choice in best.rows
    )
    title = "Batches: predicted tokens per second of all sequences together"
    numbers = ("tokens/s", "plain", "vs plain", "runs on")
    return plain_table(title, ("sequences", "best speculation", "placement"), numbers, rows)
