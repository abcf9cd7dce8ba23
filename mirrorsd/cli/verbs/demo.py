"""`mirrorsd demo`: calibrates, records, searches, runs and compares, all on this machine."""

from pathlib import Path
from random import randrange
from typing import TYPE_CHECKING, Annotated, Final

from mirrorsd.cli import options
from mirrorsd.cli.console import (
    escaped,
    results,
    say_command,
    show,
    show_paragraphs,
    show_verdict,
    telling_what_was_saved,
    write_json,
)
from mirrorsd.cli.option_values import ModelNames, chosen_prompts, say_unused
from mirrorsd.cli.options import option
from mirrorsd.cli.progress_bar import OthersWatch, stages, task

if TYPE_CHECKING:
    from mirrorsd.demo.stages import StageReport

EXAMPLE = "mirrorsd demo --json demo.json"
_SEEDS: Final = 1_000_000


def demo(
    out: Annotated[Path, options.output_folder("Folder for profile, record, schedules, traces and report.")] = Path(
        "out/demo"
    ),
    minutes: Annotated[
        float,
        option(
            "Minutes to aim for: in less time, fewer schedules and prompts are run, but at least one prompt.",
            min=0.5,
            max=options.MOST_MINUTES,
        ),
    ] = 6.5,
    prompts: options.PromptsOption = None,
    seed: Annotated[
        int | None, option("Seed of the random choice of prompts. Default: a new one in every demo.", min=0)
    ] = None,
    max_prompts: Annotated[int, option("Limit of prompts to record.", min=1)] = 160,
    max_new_tokens: Annotated[
        int, option("Answer length (new tokens) that the verdict is about; shorter ones are reported too.", min=2)
    ] = 256,
    max_window: options.MaxWindowOption = 8,
    target: options.TargetOption = options.DEFAULT_TARGET,
    drafter: options.DrafterOption = None,
    exits: options.ExitsOption = None,
    heads: options.HeadsOption = None,
    dtype: options.DtypeOption = options.Dtype.BFLOAT16,
    device: options.DeviceOption = None,
    lanes: options.LanesOption = None,
    explain: options.ExplainOption = False,
    json: options.JsonOption = None,
) -> None:
    """Calibrate, record, search, run the best schedules for real, and compare predicted with measured times."""
    from hwprofiles.other_use import OtherUse
    from mirrorsd.cli.tables import outcome_table
    from mirrorsd.compare.outcome_folder import DEMO, require_no_other
    from mirrorsd.demo.demo import Demo, DemoSettings

    require_no_other(out, DEMO)
    names = ModelNames(target, drafter, exits, heads, dtype)
    wanted = chosen_prompts(prompts, default="pool")
    saved: list[str] = []
    with telling_what_was_saved(saved), task("Finding the models") as report:
        pair = names.find(report)
    say_unused(pair, device, lanes)
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
        lanes=lanes,
        run_options=names._replace(target=pair.target, drafter=None, heads=None).words,
    )
    with telling_what_was_saved(saved), stages() as report_stage:
        watch = OthersWatch(OtherUse())

        def report_and_look(now: "StageReport") -> None:
            report_stage(now)
            watch.look()

        job = Demo(settings, report_and_look, saved)
        watch.warn(job.busy_now)
        result = job.run()
    if write_json(result, json, relative=["folder"]):
        show(outcome_table(result, width=results().width))
        for warning in filter(None, (result["warning"], result["shortage"])):
            show(f"\n[yellow]{escaped(warning)}[/]")
        show_verdict(result, explain=explain)
        sample = result["sample"]
        answered = f"Answered ({result['max_new_tokens']} tokens at most): {sample['answer'].strip()}"
        asked = [f"Asked: {sample['prompt']}\n{answered}"] if explain else []
        show_paragraphs(result["rounds"], *asked, f"Report: {result['report']}")
        if result["command"] is not None:
            say_command("Use the recommended schedule", result["command"])
