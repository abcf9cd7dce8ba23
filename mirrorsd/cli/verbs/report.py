"""`mirrorsd report`: writes the HTML page of a saved result again."""

from pathlib import Path
from typing import Annotated

import typer

from mirrorsd.cli.console import escaped, show, write_json
from mirrorsd.cli.options import JsonOption, output

EXAMPLE = "mirrorsd report out/demo/demo.json --out report.html"


def report(
    result: Annotated[Path, typer.Argument(help="demo.json or validate.json, with the files that it names.")],
    out: Annotated[Path, output("Where the page goes.")] = Path("report.html"),
    json: JsonOption = None,
) -> None:
    """Write the HTML page of a demo or a validation again, from what it saved; nothing is run."""
    from mirrorsd.compare.outcome_folder import read_report_data
    from planner.report.report import write_report

    write_report(read_report_data(result), out)
    if write_json({"report": str(out)}, json):
        show(f"Wrote {escaped(out)}")
