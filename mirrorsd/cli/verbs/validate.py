"""`mirrorsd validate`: runs given schedules and compares them with their simulation."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from decoding.errors import ConfigError
from mirrorsd.cli import options
from mirrorsd.cli.console import (
    results,
    say_command,
    say_whose,
    show,
    show_paragraphs,
    show_verdict,
    telling_what_was_saved,
    write_json,
)
from mirrorsd.cli.option_values import chosen_prompts, models_of
from mirrorsd.cli.progress_bar import task, watching_others

if TYPE_CHECKING:
    from mirrorsd.compare.outcome_folder import Outcome

EXAMPLE = "mirrorsd validate --schedule best.yaml --profile profile.yaml --record record.npz"


def validate(
    schedule: Annotated[list[Path], options.option("Schedule YAML; may be repeated.")],
    profile: options.ProfileOption,
    record: options.RecordOption,
    prompts: options.PromptsOption = None,
    exits: options.ExitsOption = None,
    out: Annotated[Path, options.output_folder("Folder for result, traces and report.")] = Path("out/validate"),
    explain: options.ExplainOption = False,
    json: options.JsonOption = None,
) -> None:
    """Run schedules over the recorded prompts, and compare times and rounds with the simulation."""
    from decoding.files import locked, reserved
    from decoding.schedule import load_schedule
    from mirrorsd.cli.tables import outcome_table
    from mirrorsd.compare.outcome_folder import ROOM_BYTES, VALIDATION, WRITTEN, require_no_other, write_outcome
    from mirrorsd.compare.validate_schedules import MeasuredBasis
    from mirrorsd.compare.validate_schedules import validate as run
    from planner.wording import counted

    require_no_other(out, VALIDATION)
    written = [out / name for name in (*WRITTEN, VALIDATION)]
    for path in filter(Path.is_file, (*schedule, profile, record, *filter(None, [prompts]))):
        if any(one.is_file() and one.samefile(path) for one in written):
            raise ConfigError(f"--out {out}: this command reads {path} and might overwrite it; name another folder")
    schedules = {path: load_schedule(path) for path in schedule}
    evidence, wanted = MeasuredBasis.load(profile, record), chosen_prompts(prompts, default="pool")
    say_whose(evidence.profile, evidence.record, runs=True)
    finished: list[Callable[[], Outcome]] = []

    def saved() -> list[str]:
        if not finished:
            return []
        try:
            result = write_outcome(finished.pop()(), out, VALIDATION)
        except KeyboardInterrupt:  # again
            return [f"The result in {out} may not be whole."]
        return [f"The result of {counted(result['num_prompts'], 'prompt')} is in {result['folder']}."]

    with ExitStack() as whole, telling_what_was_saved(saved):
        with (
            reserved(out, ROOM_BYTES),
            task("Validating") as report,
            watching_others() as others,
        ):
            whole.enter_context(locked(out))
            outcome = run(
                schedules,
                evidence,
                wanted,
                exits=exits,
                run_options=models_of(evidence.record, exits).words,
                progress=others.on(report),
                so_far=finished.append,
            )
        finished.append(lambda: outcome)
        result = write_outcome(outcome, out, VALIDATION)
    if write_json(result, json, relative=["folder"]):
        show(outcome_table(result, width=results().width))
        show_verdict(result, explain=explain)
        show_paragraphs(result["rounds"], *(() if explain else outcome.notes), f"Report: {result['report']}")
        if result["command"] is not None:
            say_command("Use the recommended schedule", result["command"])
