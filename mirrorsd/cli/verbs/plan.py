"""`mirrorsd plan`: what would pay on a machine that is not here, from data sheets and the shapes of two models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorsd.cli import options
from mirrorsd.cli.console import (
    JsonOption,
    escaped,
    output,
    results,
    say,
    say_next,
    show,
    show_paragraphs,
    show_verdict,
    write_json,
)

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord
    from mirrorsd.pair_on_platform import PlannedMachine
    from planner.platform_plan.choices import MachineChoice
    from planner.platform_plan.platform_plan import PlatformPlan
    from planner.platform_plan.question import Question
    from sim.acceptance.assumed import AssumedAcceptance

_MOST_BARS = 3
_NEAR_IN_SWEEPS = 2.0
EXAMPLE = "mirrorsd plan --target qwen3-14b --draft qwen3-0.6b --platform lunar-lake"


def plan(
    target: options.ShapeOption,
    draft: options.DraftsOption,
    platform: options.PlatformOrNoneOption = None,
    profile: Annotated[
        Path | None,
        options.optional("Profile of a calibrated machine, in place of a platform: its lanes cost what was measured."),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE",
            help="What if the machine had this device too: a shipped one, or the path of its YAML, with its link if "
            "wanted ([bold]rtx4090[/], [bold]h100-sxm@nvlink-4[/]); may be repeated.",
            autocompletion=options.device_names,
            show_default=False,
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        options.optional(
            "Chance that a drafted token is accepted, given that all before it were: [bold]0.8[/], or one per "
            "position, [bold]0.8,0.7,0.6[/]; a YAML of rates; or a record (.npz). Default: public measurements."
        ),
    ] = None,
    context: Annotated[
        int | None,
        options.optional(
            "Prompt length in tokens, such as 8k. Default: 512; with --profile the nearest calibrated one.",
            parser=options.num_tokens,
            metavar="N",
        ),
    ] = None,
    new_tokens: Annotated[
        int | None,
        options.optional(
            "Answer length in tokens. Default: 128; with --profile at most what was calibrated.",
            parser=options.num_tokens,
            metavar="N",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        options.optional(
            "Weights of the target: bf16, fp8, int8, int4, nvfp4, awq-int4, mlx-4bit, or a GGUF type such as q4_k_m. "
            "Default: int4 where devices share one memory, else bf16; gpt-oss as published.",
            autocompletion=options.weight_names,
        ),
    ] = None,
    draft_weights: Annotated[
        str | None,
        options.optional("Weights of the draft. Default: same as --weights.", autocompletion=options.weight_names),
    ] = None,
    cache_bits: Annotated[int, typer.Option(metavar="N", min=2, max=32, help="Bits of cached keys and values.")] = 16,
    engine: options.EngineOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="CHANGE",
            help="Change a number, PART.FIELD=VALUE: [bold]memory.bytes_per_s=+10%[/], "
            "[bold]npu.power_w=20[/]. `mirrorsd profiles show` lists parts and fields; may be repeated.",
            show_default=False,
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RANGE",
            help="The answer over a range, PART.FIELD=LOW:HIGH, LOW:HIGH:STEPS or a list: "
            "[bold]memory.bytes_per_s=80:160[/] (bandwidths in GB/s); may be given twice.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Also say which draft length is best for so many sequences at once, such as [bold]1,2,4,8[/] (64 at "
            "most), and where speculation stops paying.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the ranking to show.")] = 8,
    out: Annotated[Path | None, output("Write a page (HTML) here.")] = None,
    measured: Annotated[
        Path | None,
        options.optional("What `run`, `demo` or `validate` wrote with --json: shown beside what is predicted of it."),
    ] = None,
    schedule_out: Annotated[
        Path | None, output("Write what is recommended here, as `simulate` and `run` take it.")
    ] = None,
    profile_out: Annotated[Path | None, output("Write what the machine costs here, as `simulate` takes it.")] = None,
    acceptance_out: Annotated[Path | None, output("Write the assumed acceptance here, as `simulate` takes it.")] = None,
    trained_exits: Annotated[
        bool,
        typer.Option("--trained-exits", help="Assume trained early exits and recommend them too."),
    ] = False,
    replayed_acceptance: Annotated[
        bool,
        typer.Option("--replayed-acceptance", help="Accept a record made with other models; the result says so."),
    ] = False,
    explain: options.ExplainOption = False,
    json: JsonOption = None,
) -> None:
    """Say whether speculation would pay on a platform, and where to put the draft; nothing is run or downloaded."""
    from dataclasses import asdict

    from mirrorsd.cli.tables import (
        batch_table,
        draft_table,
        measured_table,
        place_table,
        sweep_table,
        tornado_table,
    )
    from mirrorsd.pair_on_platform import Accepted, Storage, beside_measured, question_of, runnable_drafter
    from mirrorsd.plan_entry import batch_entry, draft_entry, machine_entry, measured_entry, plan_entry, sweep_entry
    from planner.platform_plan.batches import plan_batches
    from planner.platform_plan.choices import choose_machine
    from planner.platform_plan.measured_run import play, told_of
    from planner.platform_plan.page import PageParts, write_page
    from planner.platform_plan.what_turns.moved_question import MovedQuestion
    from planner.platform_plan.what_turns.number_sweep import parse_sweep, sweep_numbers
    from planner.platform_plan.what_turns.tornado import tornado
    from sim.batch_prediction import MAX_BATCH

    swept = [parse_sweep(one) for one in sweep or ()]
    sizes = () if batch is None else options.counts("--batch", batch, MAX_BATCH, "1,2,4,8")
    ask = partial(
        question_of,
        target,
        acceptance=Accepted(_acceptance(acceptance), replayed_acceptance, trained_exits),
        lengths=(context, new_tokens),
        weights=Storage(weights, draft_weights, cache_bits),
    )
    given = partial(_given, profile=profile, add=add or (), engine=engine)
    changes = _changes(set_ or [])
    _require_one(measured, platform, draft)
    questions = {  # all of them before the first answer: a slip in a name costs nothing
        name: {one: ask(one, platform=given(name), changes=changes) for one in options.names(draft)}
        for name in options.names(platform or "")
    }
    machines = choose_machine(questions)
    drafts = machines[0].drafts
    drafter, found = drafts[0].name, drafts[0].plan
    changed = _what_if(found, partial(ask, drafter, platform=given(machines[0].name)), set_) if set_ else None
    runs = [] if measured is None else beside_measured(found, measured, target, drafter)
    batches = plan_batches(found, sizes) if sizes else None
    bars = tornado(MovedQuestion(found))
    cells = sweep_numbers(MovedQuestion(found, near=_NEAR_IN_SWEEPS), swept) if swept else []
    if out is not None:
        write_page(found, out, PageParts(batches, bars, runs, drafts))
        say(f"Wrote {out}")
    _write(found, runnable_drafter(drafter), schedule_out, profile_out, acceptance_out)
    played = play(found)
    result = plan_entry(found, bars) | {
        "confirmed_by_events": {"agrees": played.agrees, **asdict(played)},
        "what_if": changed,
        "drafts": [draft_entry(one) for one in drafts],
        "platforms": [machine_entry(one) for one in machines],
        **({"measured": [measured_entry(one) for one in runs]} if runs else {}),
        **({"sweep": sweep_entry(swept, cells)} if swept else {}),
        **({} if batches is None else {"batches": batch_entry(batches)}),
    }
    if write_json(result, json):
        if len(machines) > 1:
            _show_machines(machines)
        show_verdict(result, explain=explain)
        _show_command(found)
        if runs:
            show(f"[yellow]{escaped(told_of(runs))}[/]")
        tables = (
            measured_table(runs, results().width) if runs else None,
            place_table(found, top, results().width),
            draft_table(drafts) if len(drafts) > 1 else None,
            tornado_table(bars[:_MOST_BARS]) if bars else None,
            sweep_table(swept, cells) if swept else None,
        )
        for table in filter(None, tables):
            show("")
            show(table)
        show_paragraphs(*filter(None, (changed, played.in_words)))
        if batches is not None:
            show(batch_table(batches))
            show_paragraphs(batches.in_words, " ".join(f"Left out: {reason}." for reason in batches.left_out))


def _write(
    found: PlatformPlan, drafter: str | None, schedule: Path | None, profile: Path | None, acceptance: Path | None
) -> None:
    """Write what of the plan can be simulated and run, and say how where all of it is there."""
    from decoding.schedule import save_schedule
    from hwprofiles.profile import save_profile
    from planner.platform_plan.written_plan import runnable_schedule, save_acceptance, written_profile

    if schedule is not None:
        save_schedule(runnable_schedule(found, drafter), schedule)
    if profile is not None:
        save_profile(written_profile(found, drafter), profile)
    if acceptance is not None:
        save_acceptance(found, acceptance)
    if schedule is not None and profile is not None and acceptance is not None:
        say_next("simulate", "--schedule", schedule, "--profile", profile, "--acceptance", acceptance)


def _given(platform: str, *, profile: Path | None, add: Sequence[str], engine: str | None) -> PlannedMachine:
    """What is planned for, a platform by its name or path, or a calibrated machine; and what is imagined of it."""
    from decoding.errors import ConfigError
    from hwprofiles.profile import load_profile
    from mirrorsd.pair_on_platform import PlannedMachine

    if (profile is None) == (not platform):
        raise ConfigError("give a --platform, or the --profile of a calibrated machine, and not both")
    return PlannedMachine(platform if profile is None else load_profile(profile), add, engine)


def _show_machines(machines: Sequence[MachineChoice]) -> None:
    """Show several machines, and of each which device is too small for the target."""
    from mirrorsd.cli.tables import machine_table
    from planner.platform_plan.advice import held_back

    show(machine_table(machines))
    reasons = {one.name: held_back(one.drafts[0].plan) for one in machines if one.drafts}
    show_paragraphs(*(f"{name}: {reason}." for name, reason in reasons.items() if reason is not None))
    show_paragraphs(f"The fastest of them is {machines[0].name}:")


def _show_command(found: PlatformPlan) -> None:
    """Show how the engine that runs the best is started; on one line, to be copied."""
    from planner.platform_plan.advice import best_with_engine, engines_of

    if (best := best_with_engine(found)) is not None:
        engine = engines_of(found, best)[0]
        results().print(f"{engine.engine}: [bold]{escaped(engine.options)}[/]", soft_wrap=True)


def _require_one(measured: Path | None, *named: str | None) -> None:
    """Refuse several machines or drafts beside a run, which was of one."""
    from decoding.errors import ConfigError

    if measured is not None and any("," in (name or "") for name in named):
        raise ConfigError("--measured is of one machine and one draft: give one --platform and one --draft")


def _changes(settings: list[str]) -> dict[str, str]:
    from decoding.errors import ConfigError

    changes = {}
    for setting in settings:
        part, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting!r}: write PART.FIELD=VALUE, such as npu.memory_efficiency=0.5")
        changes[part.strip()] = value.strip()
    return changes


def _what_if(found: PlatformPlan, asked: Callable[[], Question], settings: list[str]) -> str:
    """What `--set` changes, said next to the plan without it."""
    from decoding.errors import MirrorsdError
    from planner.platform_plan.advice import what_if
    from planner.platform_plan.platform_plan import plan_platform

    try:
        return what_if(found, plan_platform(asked()), settings)
    except MirrorsdError as error:
        return f"Without what was set nothing can be said: {error}"


def _acceptance(text: str | None) -> AssumedAcceptance | AcceptanceRecord | None:
    """Rates, or a record; None for what is assumed by default."""
    from decoding.record import AcceptanceRecord
    from sim.acceptance.assumed import parse_acceptance

    if text is None:
        return None
    return AcceptanceRecord.load(text) if text.endswith(".npz") else parse_acceptance(text)
