"""What a comparison of both worlds writes into a folder: result, traces, report. And the report made again from it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, ValidationError

from calibrate.validate import Comparison
from decoding.errors import ConfigError, TraceError, listed, mistake
from decoding.files import parse_json
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.yaml_file import write_atomically
from hwprofiles.profile import load_profile
from mirrorsd.compare.both_worlds import Measured, put_together
from mirrorsd.compare.outcome import accuracy_entry, losses_in_words, rounds_in_words, schedule_entries
from mirrorsd.compare.trace_file import load_traces, save_traces
from mirrorsd.json_text import json_text, path_from
from planner.chrome_trace import save_chrome_trace
from planner.plan import Plan, make_plan
from planner.report.report import write_report
from planner.report.report_data import ReportData, ScheduleResult
from planner.search.search import rank
from planner.search.space import SearchSpace

_TRACES: Final = "traces.json.gz"
REPORT: Final = "report.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Schedules that were run in both worlds.

    Attributes:
        title: heading of the report.
        plan: what the search had found.
        results: predicted and measured, one per schedule.
        comparisons: their rounds and times.
        files: where profile and record are, by these names.
        facts: further entries of the JSON object.
        dtype: of the runs.
        notes: remarks on the circumstances.
    """

    title: str
    plan: Plan = field(repr=False)
    results: tuple[ScheduleResult, ...] = field(repr=False)
    comparisons: tuple[Comparison, ...] = field(repr=False)
    files: dict[str, Path]
    facts: dict[str, Any]
    dtype: str
    notes: tuple[str, ...] = ()


class _Files(BaseModel):
    profile: str
    record: str
    traces: str


class _Entry(BaseModel):
    schedule: Schedule


class _Saved(BaseModel):
    """What a report is made of in the object that `write_outcome` writes; it has more."""

    title: str
    created: str
    rounds: str
    notes: list[str]
    folder: str
    files: _Files
    schedules: Annotated[list[_Entry], Field(min_length=1)]


def write_outcome(outcome: Outcome, folder: Path, name: str) -> dict[str, Any]:
    """Write traces, Chrome traces and the report into `folder`, and last the JSON object `name`, which is returned.

    No path of this machine is written down: `files` are relative to `folder`, and `folder` to the file that names
    it, so all of it can be moved. In the object returned `folder` is what was given, as `report` is everywhere.
    """
    for stale in (folder / "traces").glob("[0-9][0-9]-*.json.gz"):
        stale.unlink()
    save_traces([result.measured[0] for result in outcome.results], folder / _TRACES)
    for place, (result, comparison) in enumerate(zip(outcome.results, outcome.comparisons, strict=True), 1):
        worlds = {"simulated": result.simulated[0], "measured": result.measured[0][0]}
        save_chrome_trace(worlds, folder / "traces" / f"{file_name(place, comparison.schedule)}.json.gz")
    names = [comparison.schedule for comparison in outcome.comparisons]
    losses = losses_in_words(outcome.results, names)
    rounds = " ".join((*losses, rounds_in_words(outcome.comparisons, outcome.dtype)))
    footnotes = (rounds, *outcome.notes)
    created = time.strftime("%d %B %Y, %H:%M")
    data = ReportData(
        title=outcome.title, created=created, plan=outcome.plan, results=outcome.results, footnotes=footnotes
    )
    write_report(data, folder / REPORT)
    files = outcome.files | {"traces": folder / _TRACES}
    entries = {
        **outcome.facts,
        "schedules": schedule_entries(outcome.results, outcome.comparisons),
        "accuracy": accuracy_entry(outcome.comparisons),
        "rounds": rounds,
        "notes": list(outcome.notes),
        "report": str(folder / REPORT),
        "title": outcome.title,
        "created": created,
        "files": {key: path_from(folder, path) for key, path in files.items()},
        "folder": str(folder),
    }
    write_atomically(folder / name, json_text(entries | {"folder": os.curdir}))
    return entries


def read_report_data(path: Path) -> ReportData:
    """Everything a report shows, from the JSON object that `write_outcome` wrote and the files it names.

    Raises:
        ConfigError: the object is missing, damaged, or of something else.
        MirrorsdError: a file that it names is missing or damaged.
    """
    try:
        saved = _Saved.model_validate(parse_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        found = error.errors(include_url=False) if isinstance(error, ValidationError) else None
        why = listed([mistake(one) for one in found[:3]]) if found else error
        msg = f"{path}: not a result that `mirrorsd demo` or `mirrorsd validate` wrote ({why})"
        raise ConfigError(msg) from error
    files = {key: path.parent / saved.folder / name for key, name in saved.files.model_dump().items()}
    profile, record = load_profile(files["profile"]), AcceptanceRecord.load(files["record"])
    traces, schedules = load_traces(files["traces"]), [entry.schedule for entry in saved.schedules]
    num_prompts = len(traces[0]) if traces else 0
    if [len(row) for row in traces] != [num_prompts] * len(schedules) or not 0 < num_prompts <= len(record.prompts):
        msg = f"{files['traces']}: not traces of {len(schedules)} schedules over prompts of {files['record']}"
        raise TraceError(msg)
    candidates = {one.schedule: one for one in rank(schedules, profile, record).candidates}
    results = put_together(
        [candidates[schedule] for schedule in schedules], Measured(num_prompts, traces), profile, record
    )
    plan = make_plan(SearchSpace(), profile, record)
    footnotes = (saved.rounds, *saved.notes)
    return ReportData(title=saved.title, created=saved.created, plan=plan, results=results, footnotes=footnotes)


def unique_names(results: Sequence[ScheduleResult], plan: Plan) -> tuple[str, ...]:
    """Names of the schedules as the report has them."""
    return ReportData(title="", created="", plan=plan, results=tuple(results)).names


def file_name(place: int, name: str) -> str:
    """A schedule's name as a part of file names, such as `03-mirror-from-exit-15-3-drafted`."""
    return f"{place:02d}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"
