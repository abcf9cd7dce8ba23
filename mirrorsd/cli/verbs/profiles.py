"""`mirrorsd profiles`: the devices, links and platforms that ship, their numbers, and what looks wrong in a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from mirrorsd.cli.console import JsonOption, escaped, say, show, write_json

FOUND: Final = 1
"""Exit status when the linter has found something, as linters do."""

profiles = typer.Typer(
    no_args_is_help=True,
    help="Show the devices, links and platforms that ship, and check your own.",
    epilog="Example: [bold]mirrorsd profiles show lunar-lake[/]",
)


@profiles.command("list", epilog="Example: [bold]mirrorsd profiles list --json[/]")
def list_profiles(json: JsonOption = None) -> None:
    """List the platforms, devices and links that ship."""
    from hwprofiles.platform import shipped_entries

    rows = [{"kind": entry.kind, "name": entry.name, "what": entry.content.name} for entry in shipped_entries()]
    if write_json({"profiles": rows}, json):
        width = max(len(row["name"]) for row in rows)
        for row in rows:
            show(escaped(f"{row['kind']:<8} {row['name']:<{width}} {row['what']}"))


@profiles.command("show", epilog="Example: [bold]mirrorsd profiles show lunar-lake[/]")
def show_profile(
    name: Annotated[str, typer.Argument(help="A platform, device or link that ships, or a file of one.")],
    json: JsonOption = None,
) -> None:
    """Show all numbers of a platform, a device or a link, each with its status and its source."""
    from hwprofiles.platform import find_entry
    from mirrorsd.cli.sheet_text import entry_text

    entry = find_entry(name)
    data = entry.content.model_dump(mode="json", exclude_none=True)
    if write_json({"kind": entry.kind, "name": entry.name, "data": data}, json):
        show(escaped(entry_text(entry)))


@profiles.command(epilog="Example: [bold]mirrorsd profiles lint[/]")
def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Files of platforms, devices or links, or folders of them; without any, all that ship.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Find the mistakes that tables of hardware commonly carry; exit status 1 if there are any."""
    from hwprofiles.lint import files_in, lint_file, shipped_files
    from planner.wording import counted

    files = shipped_files() if not paths else tuple(file for path in paths for file in files_in(path))
    findings = [finding for file in files for finding in lint_file(file)]
    if write_json({"num_files": len(files), "findings": [asdict(one) for one in findings]}, json):
        for one in findings:
            show(escaped(one))
        say(f"{counted(len(findings), 'finding')} in {counted(len(files), 'file')}")
    if findings:
        raise typer.Exit(FOUND)
