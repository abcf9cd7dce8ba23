"""`mirrorsd plan`: what would pay on a machine that is not here, from data sheets and the shapes of two models."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorsd.cli import options
from mirrorsd.cli.console import say, show, show_paragraphs
from mirrorsd.cli.json_option import JsonOption, write_json
from mirrorsd.cli.outputs import file_that_can_be_written
from mirrorsd.cli.verdict_text import ExplainOption, show_verdict

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord
    from planner.platform_plan.batches import BatchPlan
    from planner.platform_plan.platform_plan import PlatformPlan
    from planner.platform_plan.ranked_schedules import PlannedSchedule
    from sim.acceptance.assumed import AssumedAcceptance
    from sim.batch_prediction import BatchPrediction

EXAMPLE = "mirrorsd plan --target qwen3-14b --draft qwen3-0.6b --platform lunar-lake"


class Weights(StrEnum):
    """How weights are stored."""

    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


def plan(
    target: options.ShapeOption,
    draft: options.DraftShapeOption,
    platform: options.PlatformOption,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="How often drafted tokens are accepted: [bold]0.8[/], by place [bold]0.8,0.7,0.6[/], a YAML of rates, "
            "or a record (.npz). Without it public measurements of another pair are assumed.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 512,
    new_tokens: Annotated[int, typer.Option(min=1, help="New tokens of an answer.")] = 128,
    weights: Annotated[
        Weights | None,
        typer.Option(help="Weights of the target; int4 where devices share one memory, else bf16.", show_default=False),
    ] = None,
    draft_weights: Annotated[
        Weights | None, typer.Option(help="Weights of the draft; without it as the target's.", show_default=False)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PART.FIELD=VALUE",
            help="What if: another number, such as [bold]npu.memory_efficiency=0.5[/] or "
            "[bold]memory.bytes_per_s=+10%[/]; may be repeated.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Also say which window is best for so many sequences at once, such as [bold]1,2,4,8[/] (up to 64 "
            "each), and where speculation stops paying.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of the ranking to show.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a page (HTML) here.", show_default=False, callback=file_that_can_be_written),
    ] = None,
    trained_exits: Annotated[
        bool,
        typer.Option("--trained-exits", help="Recommend early exits too: take them as trained for this target."),
    ] = False,
    replayed_acceptance: Annotated[
        bool,
        typer.Option("--replayed-acceptance", help="Replay a record of other models than these; the result says so."),
    ] = False,
    explain: ExplainOption = False,
    json: JsonOption = None,
) -> None:
    """Say whether speculation would pay on a platform, and where to put the draft; nothing is run or downloaded."""
    from mirrorsd.pair_on_platform import Accepted, plan_pair
    from planner.platform_plan.batches import plan_batches
    from planner.platform_plan.page import write_page

    sizes = _batch_sizes(batch)
    asked = partial(
        plan_pair,
        target,
        draft,
        platform,
        acceptance=Accepted(_acceptance(acceptance), replayed_acceptance, trained_exits),
        lengths=(context, new_tokens),
        weights=(None if weights is None else weights.value, None if draft_weights is None else draft_weights.value),
    )
    found = asked(changes=_changes(set_ or []))
    changed = _what_if(found, asked, set_) if set_ else None
    batches = plan_batches(found, sizes) if sizes else None
    if out is not None:
        write_page(found, out, batches)
        say(f"Wrote {out}")
    result = _result(found) | {"what_if": changed} | ({} if batches is None else {"batches": _batches(batches)})
    if write_json(result, json):
        show(_ranking(found, top))
        show_paragraphs(*([] if changed is None else [changed]))
        show_verdict(result, explain=explain)
        if batches is not None:
            show(_batch_table(batches))
            show_paragraphs(batches.in_words, " ".join(f"Left out: {reason}." for reason in batches.left_out))


def _batch_sizes(text: str | None) -> tuple[int, ...]:
    """What `--batch` asks for; nothing without."""
    from decoding.errors import ConfigError, shown
    from sim.batch_prediction import MAX_BATCH

    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    wrong = [part for part in parts if not (part.isdecimal() and len(part) < 10 and 1 <= int(part) <= MAX_BATCH)]
    if wrong or (text is not None and not parts):
        raise ConfigError(f"--batch {shown(text)}: write sizes of 1..{MAX_BATCH}, such as 1,2,4,8")
    return tuple(map(int, parts))


def _changes(settings: list[str]) -> dict[str, str]:
    """What `--set` sets, by part and field."""
    from decoding.errors import ConfigError

    changes = {}
    for setting in settings:
        part, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting!r}: write PART.FIELD=VALUE, such as npu.memory_efficiency=0.5")
        changes[part.strip()] = value.strip()
    return changes


def _what_if(found: PlatformPlan, asked: Callable[[], PlatformPlan], settings: list[str]) -> str:
    """What `--set` changes, said next to the plan without it."""
    from decoding.errors import MirrorsdError
    from planner.platform_plan.advice import what_if

    try:
        return what_if(found, asked(), settings)
    except MirrorsdError as error:
        return f"Without what was set nothing can be said: {error}"


def _acceptance(text: str | None) -> AssumedAcceptance | AcceptanceRecord | None:
    """Rates, or a record; None for what is assumed by default."""
    from decoding.record import AcceptanceRecord
    from sim.acceptance.assumed import parse_acceptance

    if text is None:
        return None
    return AcceptanceRecord.load(text) if text.endswith(".npz") else parse_acceptance(text)


def _ranking(found: PlatformPlan, top: int) -> Any:
    """The best of every method on every placement."""
    from mirrorsd.cli.tables import plain_table
    from planner.platform_plan.advice import interval, schedule_names_of
    from planner.platform_plan.platform_plan import best_of_each
    from planner.wording import factor, milliseconds

    leaders = best_of_each(found.ranking)[:top]
    table = plain_table(f"Best of every method and place, of {len(found.ranking):,} schedules: predicted ms per token")
    table.add_column("schedule")
    table.add_column("place")
    for heading in ("ms", "interval", "times plain", "at most"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, one in zip(schedule_names_of(leaders), leaders, strict=True):
        time = milliseconds(one.tpot_s).removesuffix(" ms")
        table.add_row(name, one.place, time, interval(one), factor(one.speedup), factor(one.bound))
    return table


def _batch_table(found: BatchPlan) -> Any:
    """The best speculation next to plain decoding, by batch size."""
    from mirrorsd.cli.tables import plain_table
    from planner.platform_plan.batches import names_of
    from planner.wording import factor

    table = plain_table("Several sequences at once: predicted tokens per second of all together")
    for heading in ("at once", "best speculation", "place"):
        table.add_column(heading, justify="right" if heading == "at once" else "left")
    for heading in ("tokens/s", "plain", "times plain"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (size, choice), name in zip(found.choices.items(), names_of(found), strict=True):
        drafting, speedup = choice.drafting, choice.speedup
        own = "\u2013" if drafting is None else f"{drafting.tokens_per_s:.1f}"
        times = "\u2013" if speedup is None else factor(speedup)
        table.add_row(str(size), name, str(choice.pair or "\u2013"), own, f"{choice.plain.tokens_per_s:.1f}", times)
    return table


def _batches(found: BatchPlan) -> dict[str, Any]:
    from planner.platform_plan.batches import names_of

    def rates(one: BatchPrediction | None) -> dict[str, Any] | None:
        if one is None:
            return None
        schedule = one.schedule.model_dump(mode="json", exclude_defaults=True)
        return {"schedule": schedule, "tokens_per_s": one.tokens_per_s, "tpot_s": one.tpot_s}

    return {
        "verdict": found.in_words,
        "switch_off_at": found.switch_off_at,
        "sizes": [
            {
                "batch_size": size,
                "best_window": choice.best.schedule.num_speculative_tokens,
                "name": name,
                "placement": None
                if choice.pair is None
                else {"target": choice.pair.target, "draft": choice.pair.draft},
                "drafting": rates(choice.drafting),
                "plain": rates(choice.plain),
                "speedup": choice.speedup,
            }
            for (size, choice), name in zip(found.choices.items(), names_of(found), strict=True)
        ],
        "left_out": list(found.left_out),
    }


def _result(found: PlatformPlan) -> dict[str, Any]:
    from planner.platform_plan.advice import advice, schedule_names_of

    needed, comparison = found.needed, found.comparison
    return {
        "ranking": [_row(name, one) for name, one in zip(schedule_names_of(found.ranking), found.ranking, strict=True)],
        **advice(found).entry,
        "pays": found.pays,
        "speedup": None
        if comparison is None
        else {"value": comparison.value, "low": comparison.low, "high": comparison.high},
        "break_even": None
        if needed is None
        else {"acceptance": needed.at, "low": needed.low, "high": needed.high, "now": needed.now},
        "search": {
            "num_schedules": len(found.ranking),
            "num_prompts": len(found.question.record.prompts),
            "seconds": found.seconds,
        },
        "memory": [
            {
                "place": need.place,
                "memory": need.memory,
                "needed_bytes": need.needed_bytes,
                "capacity_bytes": need.capacity_bytes,
                "fits": need.fits,
            }
            for need in found.needs
        ],
        "left_out": list(found.left_out),
        "assumptions": [
            {
                "field": one.field,
                "value": one.value,
                "low": one.low,
                "high": one.high,
                "status": one.status,
                "source": one.source,
            }
            for one in found.assumptions
        ],
    }


def _row(name: str, one: PlannedSchedule) -> dict[str, Any]:
    return {
        "name": name,
        "schedule": one.schedule.model_dump(mode="json", exclude_defaults=True),
        "method": one.schedule.method,
        "placement": {"target": one.pair.target, "draft": one.pair.draft},
        "tpot_s": one.tpot_s,
        "tpot_s_low": one.tpot_s_low,
        "tpot_s_high": one.tpot_s_high,
        "ttft_s": one.prediction.ttft_s,
        "speedup": one.speedup,
        "energy_j_per_token": one.energy_j_per_token,
        "usd_per_million_tokens": one.usd_per_million_tokens,
        "bound": one.bound,
        "needs_training": one.needs_training,
    }
