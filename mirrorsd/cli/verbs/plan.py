"""`mirrorsd plan`: predicts from data sheets and model shapes whether speculation pays on a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from decoding.errors import ConfigError, MirrorsdError
from mirrorsd.cli import options
from mirrorsd.cli.console import (
    escaped,
    results,
    say,
    say_next,
    show,
    show_paragraphs,
    show_verdict,
    write_json,
)
from mirrorsd.cli.option_values import (
    changes_of,
    counts,
    every_name,
    known_acceptance,
    listed,
    num_tokens,
    questions_of,
    say_added,
)
from mirrorsd.cli.options import FORMATS, option, output, weights_option

if TYPE_CHECKING:
    from mirrorsd.pair_on_platform import PlannedMachine
    from planner.platform_plan.batches import BatchPlan
    from planner.platform_plan.choices import MachineChoice
    from planner.platform_plan.platform_plan import PlatformPlan
    from planner.platform_plan.question import Question

_MOST_BARS: Final = 3
_NEAR_IN_SWEEPS: Final = 2.0
_TOKENS: Final = {"parser": num_tokens, "metavar": "N"}
EXAMPLE = "mirrorsd plan --target qwen3-14b --draft qwen3-0.6b --platform lunar-lake"


def plan(
    target: options.ShapeOption,
    draft: options.DraftsOption,
    platform: options.PlatformOrNoneOption = None,
    profile: Annotated[
        Path | None,
        option("Profile of a calibrated machine, instead of a platform: costs of its lanes are as measured."),
    ] = None,
    add: Annotated[
        list[str] | None,
        option(
            "Add a device to the machine: a shipped one or the path of its YAML, optionally with its link "
            "([bold]rtx4090[/], [bold]h100-sxm@nvlink-4[/]). For several, use commas or repeat the option.",
            metavar="DEVICE",
            autocompletion=options.device_names,
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        option(
            "Chance that a drafted token is accepted, given that all before it were: [bold]0.8[/], or one per "
            "position, [bold]0.8,0.7,0.6[/]; a YAML of rates; or a record (.npz). Default: public measurements."
        ),
    ] = None,
    context: Annotated[
        int | None,
        option(
            "Prompt length in tokens (8k is 8,192). Default: 512; with --profile the nearest calibrated one.", **_TOKENS
        ),
    ] = None,
    new_tokens: Annotated[
        int | None,
        option("Answer length in tokens. Default: 128; with --profile at most what was calibrated.", **_TOKENS),
    ] = None,
    weights: Annotated[
        str | None,
        option(
            f"Weights of the target: {FORMATS}. Default: the format in its name (Qwen3-8B-Q8_0.gguf), or else the "
            "published one, mostly bf16; at most int4 if devices share one memory and no card has its own (added "
            "devices do not count).",
            **weights_option,
        ),
    ] = None,
    draft_weights: Annotated[
        str | None,
        option(
            "Weights of the draft model. Default: the format in its name, or else the target's; bf16 for eagle3, "
            "dflash and medusa if the target is in AWQ, FP8 or a similar format.",
            **weights_option,
        ),
    ] = None,
    cache_bits: Annotated[int, option("Bits per number in the KV cache.", min=2, max=32)] = 16,
    engine: options.EngineOption = None,
    set_: Annotated[
        list[str] | None,
        option(
            "Change a number, PART.FIELD=VALUE: [bold]memory.bytes_per_s=+10%[/], [bold]npu.power_w=20[/]. `mirrorsd "
            "profiles show` lists parts and fields; may be repeated.",
            "--set",
            metavar="CHANGE",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        option(
            "Answer over a range, PART.FIELD=LOW:HIGH, LOW:HIGH:STEPS or a list: "
            "[bold]memory.bytes_per_s=80:160[/] (bandwidths in GB/s); may be given twice.",
            metavar="RANGE",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        option(
            "Also say which draft length is best for these batch sizes, such as [bold]1,8,64[/] (256 at most), "
            "and where speculation stops paying.",
            metavar="SIZES",
        ),
    ] = None,
    top: Annotated[int, option("Rows of the ranking to show.", min=1)] = 8,
    out: Annotated[Path | None, options.page("Write a page (HTML) here; --schedule-out writes the schedule.")] = None,
    measured: Annotated[
        Path | None, option("JSON of real runs (`run`, `demo` or `validate`), to compare with the plan.")
    ] = None,
    schedule_out: Annotated[
        Path | None, output("Write the recommended schedule here, as `simulate` and `run` take it.", kind="YAML")
    ] = None,
    profile_out: Annotated[
        Path | None, output("Write the machine's profile here, as `simulate` takes it.", kind="YAML")
    ] = None,
    acceptance_out: Annotated[
        Path | None, output("Write the assumed acceptance here, as `simulate` takes it.", kind="YAML")
    ] = None,
    trained_exits: Annotated[
        bool, option("Assume trained early exits and recommend them too.", "--trained-exits")
    ] = False,
    replayed_acceptance: options.ReplayedOption = False,
    explain: options.ExplainOption = False,
    json: options.JsonOption = None,
) -> None:
    """Predict whether speculation pays on a machine, and where to put the draft; nothing is run or downloaded."""
    from dataclasses import asdict

    from decoding.yaml_file import write_atomically
    from mirrorsd import plan_entry as entries
    from mirrorsd.cli import tables
    from mirrorsd.pair_on_platform import Accepted, Storage, beside_measured, question_of, runnable_drafter
    from planner.platform_plan.batches import plan_batches
    from planner.platform_plan.changed_numbers.moved_question import MovedQuestion
    from planner.platform_plan.changed_numbers.number_sweep import parse_sweep, sweep_numbers
    from planner.platform_plan.changed_numbers.tornado import tornado
    from planner.platform_plan.choices import choose_machine
    from planner.platform_plan.measured_run import play
    from sim.batch_prediction import MAX_BATCH

    swept = [parse_sweep(one) for one in sweep or ()]
    sizes = () if batch is None else counts("--batch", batch, MAX_BATCH)
    ask = partial(
        question_of,
        target,
        acceptance=Accepted(known_acceptance(acceptance, acceptance_out), replayed_acceptance, trained_exits),
        lengths=(context, new_tokens),
    )
    added = every_name(add or ())
    given, told = _machines(platform, profile, added, engine), say_added(added)
    if measured is not None and (len(given) > 1 or "," in draft):
        raise ConfigError("--measured needs a single machine and a single draft: give one --platform and one --draft")
    questions, stored, refused = questions_of(
        partial(ask, changes=changes_of(set_ or ())), given, listed(draft), Storage(weights, draft_weights, cache_bits)
    )
    machines = choose_machine(questions)
    chosen = machines[0]
    given_as = {
        "target": target,
        "draft": draft,
        "platform": chosen.name or None,
        "profile": profile and str(profile),
        "add": added,
        "engine": engine,
        "acceptance": acceptance,
        "changes": changes_of(set_ or ()),
    }
    left_out = {"drafts_left_out": [{"draft": name, "reason": reason} for name, reason in refused.items()]}
    drafts, found, fastest = chosen.drafts, chosen.drafts[0].plan, chosen.drafts[0].name
    changed = (
        _what_if(chosen, partial(ask, fastest, platform=given[chosen.name], weights=stored), set_) if set_ else None
    )
    runs = None if measured is None else beside_measured(found, measured, target, fastest)
    batches = plan_batches(found, sizes) if sizes else None
    bars, played = tornado(MovedQuestion(found)), play(found)
    cells = sweep_numbers(MovedQuestion(found, near=_NEAR_IN_SWEEPS), swept) if swept else []
    if out is not None:
        from planner.platform_plan.plan_page import render_page

        page = render_page(
            found, batches=batches, bars=bars, measured=runs, machines=machines, swept=swept, cells=cells
        )
        write_atomically(out, page)
        say(f"Wrote {escaped(out)}")
    _write(found, runnable_drafter(fastest), schedule_out, profile_out, acceptance_out)
    result = (
        entries.plan_entry(found, bars, given_as)
        | left_out
        | {
            "confirmed_by_events": {"agrees": played.agrees, **asdict(played)},
            "what_if": changed,
            "drafts": [entries.draft_entry(one) for one in drafts],
            "platforms": [entries.machine_entry(one) for one in machines],
            **({} if runs is None else entries.measured_entries(runs, found)),
            **({"sweep": entries.sweep_entry(swept, cells)} if swept else {}),
            **({} if batches is None else {"batches": entries.batch_entry(batches, found)}),
        }
    )
    if write_json(result | {"warnings": [*result["warnings"], *told]}, json):
        if len(machines) > 1:
            _show_machines(machines, stored.target if weights is None else None)
        show_verdict(result, explain=explain)
        _show_command(found)
        if runs is not None:
            show(f"[yellow]{escaped(runs.in_words)}[/]")
        shown = (
            None if runs is None else tables.measured_table(runs, results().width),
            tables.place_table(found, top, results().width),
            tables.draft_table(drafts) if len(drafts) > 1 else None,
            tables.tornado_table(bars[:_MOST_BARS]) if bars else None,
            tables.sweep_table(swept, cells) if swept else None,
            tables.batch_table(batches, found) if batches is not None and batches.choices else None,
        )
        for table in filter(None, shown):
            show("")
            show(table)
        show_paragraphs(*filter(None, (*(() if batches is None else _told(batches)), changed, played.in_words)))


def _machines(
    platform: str | None, profile: Path | None, add: Sequence[str], engine: str | None
) -> dict[str, PlannedMachine]:
    """Return the machines to plan for, with added devices, by name; the name of a calibrated one is empty."""
    from hwprofiles.profile import load_profile
    from mirrorsd.pair_on_platform import PlannedMachine

    if platform is None and profile is None:
        raise ConfigError(
            "no machine is given: give --platform (a card such as rtx4090 or 2xrtx3090, a Mac such as m4-max, or a "
            "platform such as lunar-lake; `mirrorsd profiles list` has all), or the --profile of a calibrated machine"
        )
    if platform is not None and profile is not None:
        raise ConfigError(f"--platform {platform} and --profile {profile} are different machines: give one of them")
    if profile is not None:
        return {"": PlannedMachine(load_profile(profile), add, engine)}
    return {name: PlannedMachine(name, add, engine) for name in listed(str(platform))}


def _write(
    found: PlatformPlan, drafter: str | None, schedule: Path | None, profile: Path | None, acceptance: Path | None
) -> None:
    """Write the files that were asked for; if all three are written, print the command that simulates them."""
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


def _show_machines(machines: Sequence[MachineChoice], weights: str | None) -> None:
    """Show several machines, the weights in which they are compared, and which devices are too small for the target."""
    from mirrorsd.cli.tables import machine_table
    from planner.platform_plan.advice import held_back

    show(machine_table(machines))
    if weights is not None:
        show(f"All are compared in {weights}, the default if devices share one memory; --weights changes that.")
    reasons = {one.name: held_back(one.drafts[0].plan) for one in machines if one.drafts}
    show_paragraphs(*(f"{name}: {reason}." for name, reason in reasons.items() if reason is not None))
    show_paragraphs(f"The fastest of the machines is {machines[0].name}:")


def _show_command(found: PlatformPlan) -> None:
    """Show the command of the engine that runs the fastest schedule, on one line so that it can be copied."""
    from planner.plan_engines import best_with_engine, engines_of
    from planner.platform_plan.engine_commands import OURS
    from planner.wording import factor

    best = best_with_engine(found)
    if best is not None:
        engine = engines_of(found, best)[0]
        name = "To run it on that machine" if engine.engine == OURS else engine.engine
        name += f", {factor(best.speedup)} plain decoding" * (best.speedup < 1)
        results().print(f"{name}: [bold]{escaped(engine.options)}[/]", soft_wrap=True)


def _told(batches: BatchPlan) -> tuple[str, str]:
    left_out = batches.left_out if batches.choices else ()  # without choices, `in_words` says it
    return batches.in_words, " ".join(f"Left out: {reason}." for reason in left_out)


def _what_if(found: MachineChoice, asked: Callable[[], Question], settings: list[str]) -> str:
    """Say what `--set` changes for a machine and its fastest draft, compared with the answer without it."""
    from planner.platform_plan.advice import what_if
    from planner.platform_plan.choices import choose_machine

    try:
        return what_if(found, choose_machine({found.name: {"": asked()}})[0], settings)
    except MirrorsdError as error:
        return f"Without --set there is no answer to compare with: {error}"
