"""`mirrorsd import`: what rows cost by an engine's own benchmark, and what to set for it in a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorsd.cli.console import escaped, show, show_paragraphs
from mirrorsd.cli.outputs import JsonOption, write_json

if TYPE_CHECKING:
    from planner.bench_file import BenchCurve

EXAMPLE = "mirrorsd import bench.jsonl"


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Output of llama-bench (-p 1,2,3,4,5,6,8,12,16 -n 32) or llama-batched-bench: JSON, JSON Lines, CSV "
            "or Markdown.",
            show_default=False,
        ),
    ],
    json: JsonOption = None,
) -> None:
    """Read what rows cost from an engine's own benchmark, and say what to set for it in a plan."""
    from planner.bench_file import read_bench

    curves = [curve for file in files for curve in read_bench(file)]
    if not write_json({"curves": [_entry(one) for one in curves]}, json):
        return
    for one in curves:
        show(_table(one))
        show_paragraphs(_in_a_plan(one))


def _table(curve: BenchCurve) -> Any:
    from mirrorsd.cli.tables import plain_table
    from planner.wording import between, factor, in_ms

    told = f"{curve.model} on {curve.device}, rows of {curve.how}, {curve.context} cached tokens"
    settings = f" ({curve.settings})" if curve.settings else ""
    table = plain_table(escaped(f"{told}{settings}: ms per pass"), (), ("rows", "ms", "interval", "times one row"))
    for rows, time in curve.times.items():
        table.add_row(str(rows), in_ms(time.time_s), between(time.low, time.high), factor(curve.ratio(rows)))
    return table


def _in_a_plan(curve: BenchCurve) -> str:
    """Say what to set, or why there is nothing to set."""
    found = curve.growth_per_row
    if found is None:
        return "There are no passes over 2 to 8 rows, so nothing follows for a plan."
    value, low, high = found
    if value <= 0:
        return "Further rows cost nothing here: set --set DEVICE.growth_per_row=0.001 in a plan."
    return (
        f"Every further row, up to eight, costs {100 * value:.2g} % of one ({100 * low:.2g} to {100 * high:.2g} %). "
        f"In a plan: --set DEVICE.growth_per_row={value:.3g}, DEVICE being gpu, say."
    )


def _entry(curve: BenchCurve) -> dict[str, Any]:
    growth = curve.growth_per_row
    return {
        "target": curve.model,
        "device": curve.device,
        "engine": "llama.cpp",
        "context": curve.context,
        "settings": curve.settings,
        "source": curve.source,
        "how": curve.how,
        "rows": [{"rows": rows, **time._asdict(), "ratio": curve.ratio(rows)} for rows, time in curve.times.items()],
        "growth_per_row": None if growth is None else dict(zip(("value", "low", "high"), growth, strict=True)),
    }
