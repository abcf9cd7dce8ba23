"""`mirrorsd demo`: everything at once, on this machine."""

from __future__ import annotations

from pathlib import Path
from random import randrange
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mirrorsd.cli import options
from mirrorsd.cli.console import (
    JsonOption,
    escaped,
    folder_that_can_be_written,
    results,
    say_command,
    show,
    show_paragraphs,
    show_verdict,
    telling_what_was_saved,
    write_json,
)
from mirrorsd.cli.progress_bar import OthersWatch, stages, task

if TYPE_CHECKING:
    from mirrorsd.demo.stages import StageReport

EXAMPLE = "mirrorsd demo --json demo.json"
_SEEDS: Final = 1_000_000


def demo(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for profile, record, schedules, traces and report.", callback=folder_that_can_be_written
        ),
    ] = Path("out/demo"),
    minutes: Annotated[
        float,
        typer.Option(
            min=0.5,
            max=options.MOST_MINUTES,
            help="Aim to be done in so many: fewer schedules and prompts are run if need be, one prompt at least.",
        ),
    ] = 6.5,
    prompts: options.PromptsOption = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the draw of prompts; each demo draws others without it.")
    ] = None,
    max_prompts: Annotated[int, typer.Option(min=1, help="Most prompts to record.")] = 160,
    max_new_tokens: Annotated[
        int, typer.Option(min=2, help="Length of answers to judge for, in new tokens; shorter ones are told as well.")
    ] = 256,
    max_window: options.MaxWindowOption = 8,
    target: options.TargetOption = options.DEFAULT_TARGET,
    drafter: options.DrafterOption = None,
    exits: options.ExitsOption = None,
    heads: options.HeadsOption = None,
    dtype: options.DtypeOption = options.Dtype.BFLOAT16,
    device: options.DeviceOption = None,
    explain: options.ExplainOption = False,
    json: JsonOption = None,
) -> None:
    """Calibrate, record, search, run the best schedules for real, and compare predicted with measured times."""
    from hwprofiles.other_use import OtherUse
    from mirrorsd.cli.tables import outcome_table
    from mirrorsd.demo.demo import Demo, DemoSettings

    names = options.ModelNames(target, drafter, exits, heads, dtype)
    wanted = options.chosen_prompts(prompts, usual="pool")
    saved: list[str] = []
    with telling_what_was_saved(saved), task("Finding the models") as report:
        pair = names.find(report)
    settings = DemoSettings(
        pair=pair,
        prompts=wanted,
        seed=randrange(_SEEDS) if seed is None else seed,
        out=out,
        time_s=60 * minutes,
        max_prompts=max_prompts,
        max_new_tokens=max_new_tokens,
        max_window=max_window,
        device=device,
        run_options=names._replace(drafter=None, heads=None).words,
    )
    with telling_what_was_saved(saved), stages() as report_stage:
        watch = OthersWatch(OtherUse())

        def report_and_look(now: StageReport) -> None:
            report_stage(now)
            watch.look()

        job = Demo(settings, report_and_look, saved)
        watch.warn(job.busy_now)
        result = job.run()
    if write_json(result, json, relative=["folder"]):
        show(outcome_table(result, width=results().width))
        _show_answer(result, explain=explain)


def _show_answer(result: dict[str, Any], *, explain: bool) -> None:
    """Print the answer, what it depends on, what the model said, and how to use it."""
    if result["warning"] is not None:
        show(f"\n[yellow]{escaped(result['warning'])}[/]")
    show_verdict(result, explain=explain)
    sample, most = result["sample"], result["max_new_tokens"]
    asked = f"Asked: {sample['prompt']}\nAnswered ({most} tokens at most): {sample['answer'].strip()}"
    show_paragraphs(result["rounds"], *([asked] if explain else []), f"Report: {result['report']}")
    if result["command"] is not None:
        say_command("Use what is recommended", result["command"])
