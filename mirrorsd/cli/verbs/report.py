"""`mirrorsd report`: the HTML page again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirrorsd.cli.console import JsonOption, escaped, file_that_can_be_written, show, write_json

EXAMPLE = "mirrorsd report out/demo/demo.json --out report.html"


def report(
    result: Annotated[Path, typer.Argument(help="demo.json or validate.json, with the files that it names.")],
    out: Annotated[Path, typer.Option(help="Where the page goes.", callback=file_that_can_be_written)] = Path(
        "report.html"
    ),
    json: JsonOption = None,
) -> None:
    """Write the HTML page of a demo or a validation again, from what it saved; nothing is run."""
    from mirrorsd.compare.outcome_folder import read_report_data
    from planner.report.report import write_report

    write_report(read_report_data(result), out)
    if write_json({"report": str(out)}, json):
        show(f"Wrote {escaped(out)}")
