"""`mirrorsd demo`: everything at once, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrorsd.cli.console import escaped, say, show, telling_what_was_saved
from mirrorsd.cli.json_option import JsonOption, write_json
from mirrorsd.cli.options import (
    DEFAULT_TARGET,
    DrafterOption,
    Dtype,
    DtypeOption,
    ExitsOption,
    HeadsOption,
    PromptsOption,
    TargetOption,
    chosen_heads,
    chosen_prompts,
)
from mirrorsd.cli.progress import stages, task

EXAMPLE = "mirrorsd demo --json demo.json"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for profile, record, schedules, traces and report.")] = Path(
        "out/demo"
    ),
    minutes: Annotated[
        float, typer.Option(min=0.5, help="Be done in so many; fewer prompts are run if need be.")
    ] = 5.5,
    prompts: PromptsOption = None,
    max_prompts: Annotated[int, typer.Option(min=1, help="Most prompts to record and run.")] = 12,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Cut every text there.")] = 48,
    max_window: Annotated[int, typer.Option(min=1, max=16, help="Most drafted tokens per round.")] = 8,
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    exits: ExitsOption = None,
    heads: HeadsOption = None,
    dtype: DtypeOption = Dtype.BFLOAT16,
    json: JsonOption = None,
) -> None:
    """Calibrate, record, search, run the best schedules for real, and lay predicted beside measured."""
    from mirrorsd.cli.tables import outcome_table
    from mirrorsd.demo.demo import Demo, DemoSettings
    from mirrorsd.model_pair import find_pair

    wanted = chosen_prompts(prompts, None)
    with task("Finding the models") as report:
        pair = find_pair(
            target, drafter=drafter, exits=exits, heads=chosen_heads(heads), dtype=dtype.value, progress=report
        )
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
        show(outcome_table(result))
        show("")
        show(escaped(result["verdict"]))
        show("")
        show(escaped(result["rounds"]))
        show("")
        for note in job.notes:
            show(escaped(note))
            show("")
        show(f"Report: {escaped(result['report'])}")
