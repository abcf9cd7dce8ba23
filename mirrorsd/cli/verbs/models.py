"""`mirrorsd models`: what is in the cache, and how it gets there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mirrorsd.cli.console import escaped, say_next, show
from mirrorsd.cli.json_option import JsonOption, write_json
from mirrorsd.cli.options import ModelNames
from mirrorsd.cli.progress_bar import task

models = typer.Typer(
    no_args_is_help=True,
    help="List the models that can be named, and fetch them.",
    epilog="Example: [bold]mirrorsd models fetch smollm2-135m-instruct[/]",
)


@models.command("list", epilog="Example: [bold]mirrorsd models list --json[/]")
def list_models(json: JsonOption = None) -> None:
    """Show the embedded models, whether they are in the cache, and what ships for them."""
    from runtime.drafters.shipped import shipped_for
    from runtime.models.model_folder import known_models

    rows: list[dict[str, Any]] = [
        {
            "name": m.name,
            "present": m.is_present,
            "folder": str(m.folder),
            "num_bytes": m.num_bytes,
            "shipped": [one.name for one in shipped_for(m.name)],
        }
        for m in known_models()
    ]
    if write_json({"models": rows}, json):
        for row in rows:
            size = f"{row['num_bytes'] / 1e6:.0f} MB" if row["present"] else "not fetched yet"
            show(f"{row['name']}  {size}  {escaped(row['folder'])}")
            show(f"  drafters, heads and exits for it: {', '.join(row['shipped']) or 'none'}")


@models.command(epilog="Example: [bold]mirrorsd models fetch smollm2-135m-instruct[/]")
def fetch(
    name: Annotated[str, typer.Argument(help="An embedded model, a hub id (owner/model), or a local folder.")],
    json: JsonOption = None,
) -> None:
    """Fetch a model and convert it if need be; do nothing if it is there already."""
    from runtime.models.model_folder import resolve_model

    with task(f"Fetching {name}") as report:
        folder = resolve_model(name, progress=report)
    if write_json({"name": name, "folder": str(folder)}, json):
        show(f"{escaped(name)} is ready: {escaped(folder)}")
        say_next("calibrate", *ModelNames(name).words, "--quick", "--out", "profile.yaml")
