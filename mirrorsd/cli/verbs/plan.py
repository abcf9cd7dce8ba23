"""`mirrorsd plan`: what would pay on a machine that is not here, from data sheets and the shapes of two models."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorsd.cli.console import say, show, show_paragraphs
from mirrorsd.cli.json_option import JsonOption, write_json

if TYPE_CHECKING:
    from hwprofiles.platform import Platform
    from planner.platform_plan.platform_plan import PlannedSchedule, PlatformPlan
    from planner.platform_plan.question import Question
    from sim.cost.roofline import StoredModel

EXAMPLE = "mirrorsd plan --target qwen3-14b --draft qwen3-0.6b --platform lunar-lake"


class Weights(StrEnum):
    """How weights are stored."""

    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


def plan(
    target: Annotated[str, typer.Option(help="A shipped model shape, or a Hugging Face config.json or its folder.")],
    draft: Annotated[str, typer.Option(help="The draft, likewise.")],
    platform: Annotated[str, typer.Option(help="A shipped platform, or a platform YAML.")],
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
    top: Annotated[int, typer.Option(min=1, help="Rows of the ranking to show.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write a page (HTML) here.", show_default=False)] = None,
    json: JsonOption = None,
) -> None:
    """Say whether speculation would pay on a platform, and where to put the draft; nothing is run or downloaded."""
    from hwprofiles.model_shape import model_shape
    from hwprofiles.platform import load_platform
    from planner.platform_plan.advice import advice
    from planner.platform_plan.page import write_page
    from planner.platform_plan.platform_plan import plan_platform
    from sim.cost.roofline import StoredModel

    machine = _changed(load_platform(platform), set_ or [])
    stored = weights or _usual_weights(machine)
    asked = _question(
        machine,
        StoredModel(shape=model_shape(target), weights=stored.value),
        StoredModel(shape=model_shape(draft), weights=(draft_weights or stored).value),
        acceptance,
        num_prompt_tokens=context,
        num_new_tokens=new_tokens,
    )
    found = plan_platform(asked)
    if out is not None:
        write_page(found, out)
        say(f"Wrote {out}")
    if write_json(_result(found), json):
        show(_ranking(found, top))
        show_paragraphs(*advice(found))


def _usual_weights(platform: Platform) -> Weights:
    shared = any(len(pool.devices) > 1 for pool in platform.memory_pools.values())
    return Weights.INT4 if shared else Weights.BF16


def _changed(platform: Platform, settings: list[str]) -> Platform:
    """The platform with what `--set` sets."""
    from decoding.errors import ConfigError
    from hwprofiles.overrides import with_overrides

    overrides = {}
    for setting in settings:
        part, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting!r}: write PART.FIELD=VALUE, such as npu.memory_efficiency=0.5")
        overrides[part.strip()] = value.strip()
    return with_overrides(platform, overrides) if overrides else platform


def _question(
    platform: Platform,
    target: StoredModel,
    draft: StoredModel,
    acceptance: str | None,
    *,
    num_prompt_tokens: int,
    num_new_tokens: int,
) -> Question:
    from decoding.record import AcceptanceRecord
    from planner.platform_plan.question import assumed_question, recorded_question
    from sim.acceptance.assumed import parse_acceptance

    if acceptance is not None and acceptance.endswith(".npz"):
        return recorded_question(platform, target, draft, AcceptanceRecord.load(acceptance))
    return assumed_question(
        platform,
        target,
        draft,
        given=None if acceptance is None else parse_acceptance(acceptance),
        num_prompt_tokens=num_prompt_tokens,
        num_new_tokens=num_new_tokens,
    )


def _ranking(found: PlatformPlan, top: int) -> Any:
    """The best of every method on every placement."""
    from mirrorsd.cli.tables import plain_table
    from planner.platform_plan.advice import interval, schedule_names_of
    from planner.wording import factor, milliseconds

    leaders = found.leaders()[:top]
    table = plain_table(f"Best of every method and place, of {len(found.ranking):,} schedules: predicted ms per token")
    table.add_column("schedule")
    table.add_column("place")
    for heading in ("ms", "interval", "times plain", "at most"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, one in zip(schedule_names_of(leaders), leaders, strict=True):
        time = milliseconds(one.tpot_s).removesuffix(" ms")
        table.add_row(name, str(one.pair), time, interval(one), factor(one.speedup), factor(one.bound))
    return table


def _result(found: PlatformPlan) -> dict[str, Any]:
    from planner.platform_plan.advice import advice, schedule_names_of

    needed, comparison = found.needed, found.comparison
    return {
        "ranking": [_row(name, one) for name, one in zip(schedule_names_of(found.ranking), found.ranking, strict=True)],
        "verdict": "\n\n".join(advice(found)),
        "pays": found.pays,
        "speedup": None
        if comparison is None
        else {"value": comparison.ratio, "low": comparison.low, "high": comparison.high},
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
                "place": str(need.pair),
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
    }
