"""`mirrorsd demo`: everything at once, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrorsd.cli.console import escaped, results, say, say_next, show, show_paragraphs, telling_what_was_saved
from mirrorsd.cli.json_option import JsonOption, write_json
from mirrorsd.cli.options import (
    DEFAULT_TARGET,
    DrafterOption,
    Dtype,
    DtypeOption,
    ExitsOption,
    HeadsOption,
    MaxWindowOption,
    ModelNames,
    PromptsOption,
    TargetOption,
    chosen_prompts,
)
from mirrorsd.cli.progress_bar import stages, task

EXAMPLE = "mirrorsd demo --json demo.json"

OutOption = Annotated[Path, typer.Option(help="Folder for profile, record, schedules, traces and report.")]
MinutesOption = Annotated[
    float, typer.Option(min=0.5, help="Aim to be done in so many: fewer prompts are run if need be, one at least.")
]
MaxPromptsOption = Annotated[int, typer.Option(min=1, help="Most prompts to record and run.")]
DemoTokensOption = Annotated[int, typer.Option(min=2, help="Longest text, in new tokens.")]


def demo(
    out: OutOption = Path("out/demo"),
    minutes: MinutesOption = 5.5,
    prompts: PromptsOption = None,
    max_prompts: MaxPromptsOption = 12,
    max_new_tokens: DemoTokensOption = 48,
    max_window: MaxWindowOption = 8,
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    exits: ExitsOption = None,
    heads: HeadsOption = None,
    dtype: DtypeOption = Dtype.BFLOAT16,
    json: JsonOption = None,
) -> None:
    """Calibrate, record, search, run the best schedules for real, and compare predicted with measured times."""
    from mirrorsd.cli.tables import outcome_table
    from mirrorsd.demo.demo import Demo, DemoSettings

    names = ModelNames(target, drafter, exits, heads, dtype)
    wanted = chosen_prompts(prompts)
    with task("Finding the models") as report:
        pair = names.find(report)
    settings = DemoSettings(
        pair=pair,
        prompts=wanted,
        out=out,
        time_s=60 * minutes,
        max_prompts=max_prompts,
        max_new_tokens=max_new_tokens,
        max_window=max_window,
    )
    with stages() as report_stage:
        job = Demo(settings, report_stage)
        for note in job.notes:
            say(f"[yellow]{escaped(note)}[/]")
        with telling_what_was_saved(job.saved):
            result = job.run()
    if write_json(result, json, relative=["folder"]):
        show(outcome_table(result, width=results().width))
        show_paragraphs(result["verdict"], result["rounds"], *job.notes, f"Report: {result['report']}")
        models = names._replace(drafter=None, heads=None).words
        say_next("run", "--schedule", out / "best.yaml", *models, "--prompt", "Why is the sky blue?")
