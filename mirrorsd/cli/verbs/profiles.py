"""`mirrorsd profiles`: lists the shipped devices, links and platforms, shows their numbers, and checks files."""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorsd.cli.console import escaped, say, show, write_json
from mirrorsd.cli.options import JsonOption

if TYPE_CHECKING:
    from hwprofiles.platform import Platform
    from hwprofiles.quantity import Quantity
    from hwprofiles.sheets import Sourced

FOUND: Final = 1
"""Exit status if the linter has found something."""
WIDTH: Final = 80

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
    from hwprofiles.platform import Platform, find_entry

    entry = find_entry(name)
    data = entry.content.model_dump(mode="json", exclude_none=True)
    if write_json({"kind": entry.kind, "name": entry.name, "data": data}, json):
        lines = _platform(entry.content) if isinstance(entry.content, Platform) else _part(entry.content)
        show(escaped("\n".join([*_wrapped(f"{entry.kind} {entry.name}", indent=0), *lines])))


def _platform(platform: "Platform") -> Iterator[str]:
    """Yield lines of at most `WIDTH` columns; parts that differ only in names are described once."""
    yield from _part(platform)
    if platform.host is not None:
        yield f"  {'host':<24}{platform.host}"
    for name, members in platform.groups.items():
        yield from _wrapped(f"{'group ' + name:<24}{', '.join(members)}")
    parts: list[tuple[str, str, Sourced]] = [("device", name, one) for name, one in platform.devices.items()]
    pools = platform.memory_pools.items()
    parts += [("memory pool", f"{name} of {', '.join(one.devices)}", one) for name, one in pools]
    parts += [("link", (" -> " if one.one_way else " - ").join(one.between), one) for one in platform.links]
    alike: dict[str, tuple[str, list[str], Sourced]] = {}
    for kind, name, part in parts:
        content = part.model_dump(exclude={"between", "devices"})
        alike.setdefault(f"{kind} {content}", (kind, [], part))[1].append(name)
    for kind, names, part in alike.values():
        yield ""
        yield from _wrapped(f"{kind} {', '.join(names)}", indent=0)
        yield from _part(part)


def _part(part: "Sourced") -> Iterator[str]:
    """Yield the name of a part, its numbers with sources, and its facts."""
    from hwprofiles.sheets import DeviceSheet

    device = part if isinstance(part, DeviceSheet) else None
    yield from _wrapped(f"{getattr(part, 'name', '')}{'' if device is None else f' ({device.kind})'}")
    for field, quantity in part.quantities.items():
        yield f"  {field:<24}{_value(field, quantity):<40}{quantity.status}"
        by = "" if quantity.by is None else f"by {quantity.by}: "
        yield from _wrapped(
            f"{by}{quantity.source}{'' if quantity.as_of is None else f' ({quantity.as_of})'}", indent=6
        )
    if device is None:
        return
    facts = {
        "memory shared as": device.memory_pool,
        "power of": "its package" if device.power_of == "package" else None,
        "dispatch of": device.dispatch_of,
        "shapes": "static (compiled)" if device.static_shapes else None,
        "row buckets": ", ".join(map(str, device.row_buckets)),
        "max. prompt tokens": device.max_prompt_tokens,
        "weight formats": ", ".join(device.weight_formats),
    }
    yield from (f"  {name:<24}{value}" for name, value in facts.items() if value)
    yield from _wrapped(device.facts_source or "", indent=6)


def _value(field: str, quantity: "Quantity") -> str:
    from planner.wording import amount

    text = amount(field, quantity.value)
    if quantity.span is None:
        return text
    low, high = (amount(field, end) for end in quantity.span)
    number, _, unit = low.partition(" ")
    return f"{text} ({number if high.endswith(f' {unit}') else low} to {high})"


def _wrapped(text: str, *, indent: int = 2) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


@profiles.command(epilog="Example: [bold]mirrorsd profiles lint[/]")
def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Files of platforms, devices or links, or folders with them; without any, all that ship.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Find common mistakes in hardware descriptions; exit status 1 if there are any."""
    from hwprofiles.lint import files_in, is_of_hardware, lint_file, shipped_files
    from planner.wording import counted

    found = shipped_files() if not paths else tuple(file for path in paths for file in files_in(path))
    files = [file for file in found if file in (paths or ()) or is_of_hardware(file)]
    left_out = [str(file) for file in found if file not in files]
    findings = [finding for file in files for finding in lint_file(file)]
    content = {"num_files": len(files), "findings": [asdict(one) for one in findings], "left_out": left_out}
    if write_json(content, json):
        for one in findings:
            show(escaped(one))
        if left_out:
            say(f"Left out, since they describe no device, link or platform: {', '.join(left_out)}")
        say(f"{counted(len(findings), 'finding')} in {counted(len(files), 'file')}")
    if findings:
        raise typer.Exit(FOUND)
