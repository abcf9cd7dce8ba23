"""Writes a comparison of simulation and runs into a folder (result, traces, report), and reads it for a new report."""

import os
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from decoding.errors import ConfigError, MirrorsdError, TraceError
from decoding.files import parse_json, read_bytes, sha256_of
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule, save_schedule
from decoding.validation import errors_as
from decoding.yaml_file import write_atomically
from hwprofiles.profile import Profile, load_profile
from mirrorsd.compare.calibrated_lengths import reaching
from mirrorsd.compare.measured_answer import JudgedRuns, candidates_of, judge_runs
from mirrorsd.compare.numbers import json_text, path_from, ratio_entry, run_command
from mirrorsd.compare.outcome_entries import (
    accuracy,
    changed_slowdowns,
    changed_speed,
    disturbed_runs,
    rounds_in_words,
    schedule_entries,
)
from mirrorsd.compare.present_pace import paces_in_words
from mirrorsd.compare.runs import Measured, load_runs, load_traces, save_runs, save_traces
from mirrorsd.simulation import as_recorded, repeating_sentence
from planner.chrome_trace import save_chrome_trace
from planner.plan import Plan, make_plan
from planner.report.report import render_report
from planner.report.report_data import ReportData
from planner.report.table import results_heading
from planner.search.space import SearchSpace

_TRACES: Final = "traces.json.gz"
_RUNS: Final = "runs.json.gz"
REPORT: Final = "report.html"
_BEST: Final = "best.yaml"
DEMO, VALIDATION = "demo.json", "validate.json"
RESULTS: Final = {DEMO: "a demo", VALIDATION: "a validation"}
"""Names of results' JSON files, and which verb's result each one is."""
WRITTEN: Final = (_TRACES, _RUNS, REPORT, _BEST)
"""Files of a result besides its JSON file and Chrome traces."""
ROOM_BYTES: Final = 32 << 20
"""Disk space reserved for a result until it is written; a page takes 5 MB, and the runs of 1,600 texts another 5 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Schedules that were simulated and run, and the plan that they came from.

    Attributes:
        files: paths of "profile" and "record", and of "more", a record of further prompts, if there is one.
        facts: further entries of the JSON object.
        warnings: warnings that come before those of the runs.
        warning: a warning to show before the answer; None if there is none.
        sample: a prompt and the target's answer; None to show none.
        run_options: options of `mirrorsd run` that name the models, for the command to run next.
        given: files of schedules that exist already; another recommended schedule is written to a new file.
        paces: each lane's pace just before the runs, which predictions are for (`present_pace`).
    """

    title: str
    plan: Plan = field(repr=False)
    judged: JudgedRuns = field(repr=False)
    files: dict[str, Path]
    facts: dict[str, Any]
    dtype: str
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    warning: str | None = None
    sample: tuple[str, str] | None = None
    run_options: tuple[str, ...] = ()
    given: Mapping[Schedule, Path] = field(default_factory=dict, repr=False)
    paces: Mapping[str, float] = field(default_factory=dict, repr=False)


class _Files(BaseModel):
    profile: str
    record: str
    traces: str
    runs: str
    more: str | None = None


class _Sample(BaseModel):
    prompt: str
    answer: str


class _Entry(BaseModel):
    schedule: Schedule


class _Saved(BaseModel):
    """The fields of `write_outcome`'s JSON object that a report needs; the object has more."""

    title: str
    created: str
    rounds: str
    notes: list[str]
    warning: str | None
    command: str | None
    sample: _Sample | None
    folder: str
    files: _Files
    sha256: dict[str, str] = Field(default_factory=dict)
    """Digests of its files; earlier versions wrote none, or not all."""
    schedules: Annotated[list[_Entry], Field(min_length=1)]
    paces: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """Earlier versions predicted for the speed during calibration."""


def require_no_other(folder: Path, name: str) -> None:
    """Raise `ConfigError` if a folder has a result of another verb, whose files have the same names."""
    for other, what in RESULTS.items():
        if other != name and (folder / other).is_file():
            msg = f"--out {folder}: has the result of {what}, which would be overwritten; name another folder"
            raise ConfigError(msg)


def write_outcome(outcome: Outcome, folder: Path, name: str) -> dict[str, Any]:
    """Write traces, Chrome traces and the report into `folder`, and last the JSON object to `name`; return the object.

    The recommended schedule is written to `folder`/best.yaml, unless it is in a file that was given. If `folder` cannot
    be written, everything is written into a new temporary folder, with a warning, so that no run is lost.

    No absolute path is written, so that the folder can be moved: in the file, `files` are relative to `folder`, which
    is ".". In the returned object, `folder` and `report` are as given.
    """
    try:
        return _write(outcome, folder, name)
    except (OSError, MirrorsdError) as error:
        other = Path(tempfile.mkdtemp(prefix="mirrorsd-"))
        moved = f"{folder} cannot be written ({error}): the result is in {other} instead."
        try:
            return _write(replace(outcome, warnings=(moved, *outcome.warnings)), other, name)
        except BaseException:
            with suppress(OSError):  # fails, on purpose, if the folder has files
                other.rmdir()
            raise


def _write(outcome: Outcome, folder: Path, name: str) -> dict[str, Any]:
    for stale in (folder / "traces").glob("[0-9][0-9]-*.json.gz"):
        stale.unlink()
    judged = outcome.judged
    save_traces(judged.measured.traces, folder / _TRACES)
    save_runs(judged.measured, folder / _RUNS)
    for place, (result, name_of_it) in enumerate(zip(judged.results, judged.names, strict=True), 1):
        worlds = {"simulated": result.simulated[0], "measured": result.measured[0]}
        save_chrome_trace(worlds, folder / "traces" / f"{file_name(place, name_of_it)}.json.gz")
    is_row_invariant = outcome.plan.profile.is_row_invariant
    rounds = rounds_in_words(judged.comparisons, outcome.dtype, is_row_invariant=is_row_invariant)
    warnings = [
        *outcome.warnings,
        *disturbed_runs(judged),
        *filter(None, [paces_in_words(outcome.paces)]),
        *changed_speed(judged),
        *changed_slowdowns(judged, outcome.plan.profile),
    ]
    if judged.repeating:
        warnings.insert(0, repeating_sentence(judged.repeating, judged.num_recorded, judged.speedup_without))
    notes = (*warnings, *outcome.notes)
    files = outcome.files | {"traces": folder / _TRACES, "runs": folder / _RUNS}
    verdict = judged.answer or outcome.plan.verdict
    words = {"verdict": f"{results_heading(judged.results)}.", "warnings": [], "explanation": []}
    words |= {} if judged.answer is None else judged.answer.entry
    predicted = (f"Before the runs: {line}" for line in outcome.plan.verdict.lines)
    entries = {
        **outcome.facts,
        "paces": outcome.paces,
        "verdict": words["verdict"],
        "warnings": [*words["warnings"], *warnings],
        "explanation": [*words["explanation"], *predicted, *outcome.notes],
        "schedules": [
            entry | _file_entry(outcome.given.get(result.candidate.schedule), folder)
            for entry, result in zip(
                schedule_entries(judged, is_row_invariant=is_row_invariant), judged.results, strict=True
            )
        ],
        "repeating": {"prompts": judged.repeating, "speedup_without": ratio_entry(judged.speedup_without)},
        "accuracy": accuracy(judged),
        "rounds": rounds,
        "notes": list(notes),
        "warning": outcome.warning,
        "sample": outcome.sample and {"prompt": outcome.sample[0], "answer": outcome.sample[1]},
        "command": _use(verdict.schedule, outcome, folder),
        "report": str(folder / REPORT),
        "title": outcome.title,
        "created": time.strftime("%d %B %Y, %H:%M"),
        "files": {key: path_from(folder, path) for key, path in files.items()},
        "sha256": {key: sha256_of(path) for key, path in files.items()},
        "folder": str(folder),
    }
    data = _report_data(_Saved.model_validate(entries), outcome.plan, judged)
    write_atomically(folder / REPORT, render_report(data))
    write_atomically(folder / name, json_text(entries | {"folder": os.curdir}))
    return entries


def _file_entry(given: Path | None, folder: Path) -> dict[str, str]:
    return {} if given is None else {"file": path_from(folder, given)}


def _use(recommended: Schedule | None, outcome: Outcome, folder: Path) -> str | None:
    """Return the command that runs the recommended schedule, and write its file; None without one."""
    if recommended is None:
        return None
    path = outcome.given.get(recommended)
    if path is None:
        path = folder / _BEST
        save_schedule(recommended, path)
    return run_command(path, recommended, outcome.run_options)


def read_report_data(path: Path) -> ReportData:
    """Return everything a report shows, from the JSON file that `write_outcome` wrote and the files it names.

    Raises `ConfigError` if the JSON file is damaged or something else, and `MirrorsdError` if a file that it names is.
    """
    saved = _read(path)
    profile, record, more, measured = _evidence(saved, path)
    plan = make_plan(SearchSpace(), as_recorded(profile, record), record)
    return _report_data(saved, plan, _judge(saved, profile, record, more, measured))


def _report_data(saved: _Saved, plan: Plan, judged: JudgedRuns) -> ReportData:
    return ReportData(
        title=saved.title,
        created=saved.created,
        plan=plan,
        results=judged.results,
        measured=judged.answer,
        footnotes=(saved.rounds, *saved.notes),
        warning=saved.warning,
        command=saved.command,
        sample=None if saved.sample is None else (saved.sample.prompt, saved.sample.answer),
    )


def files_of(path: Path) -> list[Path]:
    """Return the files that `read_report_data` reads, the JSON file first; raises what it raises."""
    return [path, *_named_files(_read(path), path).values()]


def read_judged(path: Path, *, as_calibrated: bool = False) -> JudgedRuns:
    """Return the runs of a saved result with new predictions of them, without a search.

    Predictions are for the machine's speed just before the runs or, if `as_calibrated`, during calibration.
    """
    saved = _read(path)
    saved = saved.model_copy(update={"paces": {}}) if as_calibrated else saved
    profile, record, more, measured = _evidence(saved, path)
    return _judge(saved, profile, record, more, measured)


def _read(path: Path) -> _Saved:
    with errors_as(ConfigError, f"{path}: not a result that `mirrorsd demo` or `mirrorsd validate` wrote"):
        return _Saved.model_validate(parse_json(read_bytes(path)))


def _evidence(saved: _Saved, path: Path) -> tuple[Profile, AcceptanceRecord, AcceptanceRecord | None, Measured]:
    """Return profile, record, further record and runs of a result, after a check that its files did not change."""
    files = _named_files(saved, path)
    profile, record = load_profile(files["profile"]), AcceptanceRecord.load(files["record"])
    profile, _ = reaching(profile, record, [lane.name for lane in profile.lanes])
    traces = load_traces(files["traces"])
    counts = [len(row) for row in traces]
    if len(counts) != len(saved.schedules) or not all(0 < count <= len(record.prompts) for count in counts):
        msg = f"{files['traces']}: not traces of {len(saved.schedules)} schedules over prompts of {files['record']}"
        raise TraceError(msg)
    measured = load_runs(files["runs"], traces)
    for key, file in files.items():
        if key not in saved.sha256:
            msg = f"{path}: has no SHA-256 of its {key}, so {file} may have changed; run `{saved.title}` again"
            raise ConfigError(msg)
        if saved.sha256[key] != sha256_of(file):
            msg = f"{file}: not the {key} that {path} was made with: its SHA-256 differs"
            raise ConfigError(msg)
    return profile, record, AcceptanceRecord.load(files["more"]) if "more" in files else None, measured


def _named_files(saved: _Saved, path: Path) -> dict[str, Path]:
    named = saved.files.model_dump(exclude_none=True)
    return {key: path.parent / saved.folder / name for key, name in named.items()}


def _judge(
    saved: _Saved, profile: Profile, record: AcceptanceRecord, more: AcceptanceRecord | None, measured: Measured
) -> JudgedRuns:
    at_present = as_recorded(profile, record).at_paces(saved.paces)
    candidates = candidates_of([entry.schedule for entry in saved.schedules], at_present, record)
    return judge_runs(candidates, measured, at_present, record, more)


def file_name(place: int, name: str) -> str:
    """Return a schedule's name as a part of file names, such as `03-mirror-from-exit-15-3-drafted`."""
    return f"{place:02d}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"
