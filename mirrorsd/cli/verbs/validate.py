"""`mirrorsd validate`: is the simulator right about these schedules?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrorsd.cli import options
from mirrorsd.cli.console import results, say_if_busy, show, show_paragraphs, telling_what_was_saved
from mirrorsd.cli.json_option import JsonOption, write_json
from mirrorsd.cli.progress_bar import task

EXAMPLE = "mirrorsd validate --schedule best.yaml --profile profile.yaml --record record.npz"


def validate(
    schedule: Annotated[list[Path], typer.Option(help="Schedule YAML; may be repeated.")],
    profile: options.ProfileOption,
    record: options.RecordOption,
    prompts: options.PromptsOption = None,
    exits: options.ExitsOption = None,
    out: Annotated[Path, typer.Option(help="Folder for result, traces and report.")] = Path("out/validate"),
    json: JsonOption = None,
) -> None:
    """Run schedules in both worlds over the recorded prompts: times compared, and rounds one by one."""
    from decoding.schedule import load_schedule
    from mirrorsd.cli.tables import outcome_table
    from mirrorsd.compare.outcome_folder import write_outcome
    from mirrorsd.compare.validate_pair import Evidence
    from mirrorsd.compare.validate_pair import validate as run

    schedules = [load_schedule(path) for path in schedule]
    evidence, wanted = Evidence.load(profile, record), options.chosen_prompts(prompts)
    say_if_busy()
    with telling_what_was_saved([]), task("Validating") as report:
        outcome = run(schedules, evidence, wanted, exits=exits, progress=report)
    result = write_outcome(outcome, out, "validate.json")
    if write_json(result, json, relative=["folder"]):
        show(outcome_table(result, width=results().width))
        show_paragraphs(result["rounds"], f"Report: {result['report']}")
