"""`mirrorsd models`: lists and fetches models, and shows how much memory a schedule takes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say_next, show, telling_what_was_saved, write_json
from mirrorsd.cli.option_values import ModelNames
from mirrorsd.cli.options import JsonOption, option
from mirrorsd.cli.progress_bar import task

models = typer.Typer(
    no_args_is_help=True,
    help="List and fetch models; show how much memory a schedule takes.",
    epilog="Example: [bold]mirrorsd models fetch smollm2-135m-instruct[/]",
)


@models.command("list", epilog="Example: [bold]mirrorsd models list --json[/]")
def list_models(json: JsonOption = None) -> None:
    """Show the default model, whether it is in the cache, the shipped drafters for it, and all shapes."""
    from hwprofiles.model_shape import shipped_models
    from runtime.drafters.registry import shipped_for
    from runtime.models.default_model import EMBEDDED_MODELS, UNUSABLE, embedded_folder, is_present

    rows: list[dict[str, Any]] = []
    for name, model in sorted(EMBEDDED_MODELS.items()):
        folder, present = embedded_folder(model), is_present(model)
        size = sum(file.stat().st_size for file in folder.iterdir()) if present else 0
        shipped = [one.name for one in shipped_for(name)]
        rows.append({"name": name, "present": present, "folder": str(folder), "num_bytes": size, "shipped": shipped})
    shapes = list(shipped_models())
    if write_json({"models": rows, "shapes": shapes}, json):
        for row in rows:
            missing = UNUSABLE if Path(row["folder"]).exists() else "not fetched yet"
            extent = f"{row['num_bytes'] / 1e6:.0f} MB" if row["present"] else missing
            show(f"{row['name']}  {extent}  {escaped(row['folder'])}")
            show(f"  drafters, heads and exits for it: {', '.join(row['shipped']) or 'none'}")
        show(f"shapes to plan with: {', '.join(shapes)}")


@models.command(epilog="Example: [bold]mirrorsd models memory --schedule best.yaml[/]")
def memory(
    schedule: options.ScheduleOption,
    target: options.TargetOption = options.DEFAULT_TARGET,
    drafter: options.ScheduledDrafterOption = None,
    dtype: options.DtypeOption = options.Dtype.BFLOAT16,
    num_tokens: Annotated[int, option("Length of prompt and answer together, in tokens.", min=2)] = 1024,
    json: JsonOption = None,
) -> None:
    """Show how much memory a schedule takes on each lane; nothing is loaded, but missing models are fetched."""
    from dataclasses import asdict

    from decoding.schedule import load_schedule
    from mirrorsd.lane_choice import require_computed
    from mirrorsd.model_pair import find_scheduled_pair
    from runtime.drafters.registry import find_drafter
    from runtime.memory.needs import available_bytes, draft_size, gigabytes, in_words, memory_needed
    from runtime.models.config import ModelConfig

    given = load_schedule(schedule)
    with telling_what_was_saved([]), task("Finding the models") as report:
        pair, wanted = find_scheduled_pair(given, target, drafter=drafter, dtype=dtype.value, progress=report)
    require_computed(wanted, pair.dtype)
    config = ModelConfig.from_folder(pair.target_folder)
    draft = None
    if wanted.draft_lane is not None and wanted.drafter is not None:
        draft = draft_size(find_drafter(wanted.drafter), config, pair.dtype, shares_lane=wanted.is_pooled)
    streams = pair.only_for(wanted).heads if wanted.traits.drafts_itself else ()
    parts = [part.folder for part in (*streams, pair.exits) if part is not None]
    needs = memory_needed(config, wanted, dtype=pair.dtype, num_tokens=num_tokens, draft=draft, parts=parts)
    total, available = sum(need.total for need in needs.values()), available_bytes()
    lanes = {lane: {"total": need.total, **asdict(need)} for lane, need in needs.items()}
    if write_json({"lanes": lanes, "total": total, "available": available}, json):
        for lane, need in needs.items():
            show(f"{escaped(lane)}  {in_words(need)}")
        show(f"in all {gigabytes(total)}, available {'unknown' if available is None else gigabytes(available)}")


@models.command(epilog="Example: [bold]mirrorsd models fetch smollm2-135m-instruct[/]")
def fetch(
    name: Annotated[str, typer.Argument(help="The default model, a hub id (owner/model), or a local folder.")],
    json: JsonOption = None,
) -> None:
    """Fetch a model and, if necessary, convert it; do nothing if it is there already."""
    from runtime.models.model_folder import has_random_weights, resolve_model
    from runtime.models.tokenizer import Tokenizer
    from runtime.storage.safetensors_files import read_arrays

    with telling_what_was_saved([]), task(f"Fetching {name}") as report:
        folder = resolve_model(name, progress=report)
    if not has_random_weights(folder):
        read_arrays(folder)
        Tokenizer.from_folder(folder)
    if write_json({"name": name, "folder": str(folder)}, json):
        show(f"{escaped(name)} is ready: {escaped(folder)}")
        say_next("calibrate", *ModelNames(name).words, "--quick", "--out", "profile.yaml")
