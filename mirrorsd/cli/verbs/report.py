"""`mirrorsd report`: writes the HTML page of a saved result anew."""

from pathlib import Path
from typing import Annotated

import typer

from decoding.errors import ConfigError
from mirrorsd.cli.console import escaped, show, write_json
from mirrorsd.cli.options import JsonOption, page

EXAMPLE = "mirrorsd report out/demo/demo.json --out report.html"


def report(
    result: Annotated[Path, typer.Argument(help="demo.json or validate.json, or the folder of either.")],
    out: Annotated[Path, page("Where the page goes.")] = Path("report.html"),
    json: JsonOption = None,
) -> None:
    """Write the HTML page of a demo or a validation again, from what it saved; nothing is run."""
    from decoding.yaml_file import write_atomically
    from mirrorsd.compare.outcome_folder import RESULTS, files_of, read_report_data
    from planner.report.report import render_report

    known = [path for name in RESULTS if (path := result / name).is_file()]
    path = known[0] if known else result
    read = {one.resolve() for one in files_of(path)}
    for name, written in ({"--out": out} if json is None else {"--out": out, "--json": Path(json)}).items():
        if written.resolve() in read:
            raise ConfigError(f"{name} {written}: this command reads that file; name another file")
    write_atomically(out, render_report(read_report_data(path)))
    if write_json({"report": str(out)}, json):
        show(f"Wrote {escaped(out)}")
