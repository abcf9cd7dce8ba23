"""`mirrorsd search`: every schedule in simulation, the best of them in a file, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorsd.cli.console import escaped, say, show
from mirrorsd.cli.json_option import JsonOption, write_json
from mirrorsd.cli.options import ProfileOption, RecordOption

if TYPE_CHECKING:
    from rich.table import Table

    from planner.plan import Plan
    from planner.search.search import Candidate

EXAMPLE = "mirrorsd search --profile profile.yaml --record record.npz --out best.yaml"


def search(
    profile: ProfileOption,
    record: RecordOption,
    out: Annotated[
        Path | None, typer.Option(help="Write the fastest schedule here, as YAML.", show_default=False)
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(
            help="YAML that narrows or widens what is searched: methods, windows, tree_sizes and so on.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of the ranking to show.")] = 10,
    json: JsonOption = None,
) -> None:
    """Rank every schedule that the profile can price and the record can replay, and say why the best wins."""
    from decoding.record import AcceptanceRecord
    from decoding.schedule import save_schedule
    from decoding.yaml_file import load_yaml
    from hwprofiles.profile import load_profile
    from planner.plan import make_plan
    from planner.search.space import SearchSpace

    wanted = SearchSpace() if space is None else load_yaml(space, SearchSpace)
    found = make_plan(wanted, load_profile(profile), AcceptanceRecord.load(record))
    if out is not None:
        save_schedule(found.search.winner.schedule, out)
        say(f"Wrote {escaped(out)}")
    if write_json(_result(found), json):
        show(_ranking(found, top))
        show("")
        show(escaped(found.verdict.text))


def _result(found: Plan) -> dict[str, Any]:
    return {
        "winner": _candidate(found.search.winner),
        "verdict": found.verdict.text,
        "pays": found.verdict.pays,
        "speedup": found.verdict.speedup,
        "candidates": [_candidate(one) for one in found.search.candidates],
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    from mirrorsd.compare.numbers import predicted_figures
    from planner.wording import schedule_name

    return {
        "name": schedule_name(one.schedule, one.placement),
        "method": one.schedule.method,
        "placement": one.placement,
        "schedule": one.schedule.model_dump(mode="json", exclude_defaults=True),
        "predicted": predicted_figures(one.prediction),
    }


def _ranking(found: Plan, top: int) -> Table:
    from mirrorsd.cli.tables import ranking

    return ranking(found.search.candidates, top)
