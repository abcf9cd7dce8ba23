"""What plans are made of and lead to: schedules, profiles, sheets, records, rows of runs, results."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule, load_schedule, save_schedule
from decoding.yaml_file import load_yaml, save_yaml
from hwprofiles.platform import Platform
from hwprofiles.profile import load_profile, save_profile
from hwprofiles.sheets import DeviceSheet, LinkSheet, shipped_file
from mirrorsd.cli.verbs.run import _summary
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.outcome_folder import Outcome, read_report_data, write_outcome
from mirrorsd.run_file import RunFile
from planner.plan import make_plan
from planner.report.report import render_report
from planner.search.search import search
from planner.search.space import SearchSpace
from sim.evaluator import predict
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.mutated_files.kind import Kind
from tests.mutated_files.numbers import numbers
from tests.planner.synthetic import acceptance_record, machine

SETTINGS: Final = {"dtype": "float32", "seed": 0, "schedule": {"method": "autoregressive", "target_lane": "target"}}
MIRROR: Final = Schedule(
    method="mirror",
    target_lane="target",
    draft_lane="draft",
    num_speculative_tokens=3,
    root_source="exit",
    exit_layer=15,
    exit_top_k=2,
)
PLAIN: Final = Schedule(method="autoregressive", target_lane="target")


@cache
def _machine() -> tuple[Any, AcceptanceRecord]:
    return machine(), acceptance_record(num_prompts=2, num_tokens=12)


def _of(schedules: Iterable[Schedule], profile: Any, record: AcceptanceRecord) -> Iterable[float]:
    for schedule in schedules:
        found = predict(schedule, profile, record)
        yield from (found.tpot_s, found.tpot_s_low, found.tpot_s_high, found.decode_s, found.mean_acceptance_length)


def _make_schedule(folder: Path) -> list[str]:
    save_schedule(MIRROR, folder / "schedule.yaml")
    return ["schedule.yaml"]


def _make_profile(folder: Path) -> list[str]:
    save_profile(_machine()[0], folder / "profile.yaml")
    return ["profile.yaml"]


def _copied(kind: Any, name: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        shutil.copy(shipped_file(kind, name), folder / "sheet.yaml")
        return ["sheet.yaml"]

    return make


def _make_space(folder: Path) -> list[str]:
    space = SearchSpace(methods=("speculative", "mirror"), windows=(2, 3), exit_top_k=(1, 2), draft_top_k=(1,))
    save_yaml(space.model_dump(mode="json"), folder / "space.yaml")
    return ["space.yaml"]


def _read_space(folder: Path) -> Iterable[float]:
    found = search(load_yaml(folder / "space.yaml", SearchSpace), *_machine())
    return (candidate.tpot_s for candidate in found.candidates)


def _make_record(folder: Path) -> list[str]:
    _machine()[1].save(folder / "record.npz")
    return ["record.npz"]


def _read_record(folder: Path) -> Iterable[float]:
    return _of((PLAIN, MIRROR), _machine()[0], AcceptanceRecord.load(folder / "record.npz"))


def _make_rows(folder: Path) -> list[str]:
    with RunFile(folder / "rows.jsonl", SETTINGS) as file:
        for name in "abc":
            row = {"token_ids": [1, 2, 3], "num_rounds": 2, "prefill_s": 0.1, "decode_s": 0.2, "text": "été"}
            file.append({"prompt_id": name, "accept_lengths": [1, 2], "events": [], **row})
    return ["rows.jsonl"]


def _read_rows(folder: Path) -> Iterable[float]:
    with RunFile(folder / "rows.jsonl", SETTINGS) as file:
        return numbers(_summary(list(file.rows.values()))) if file.rows else ()


def _make_result(folder: Path) -> list[str]:
    profile, record = _machine()
    space = SearchSpace(methods=("speculative", "mirror"), windows=(2,), exit_top_k=(1,), draft_top_k=(1,))
    plan = make_plan(space, profile, record)
    candidates = plan.search.candidates[:3]
    runs = made_up_runs([one.schedule for one in candidates], profile, record)
    save_profile(profile, folder / "profile.yaml")
    record.save(folder / "record.npz")
    outcome = Outcome(
        title="a test",
        plan=plan,
        judged=judge_runs(candidates, runs, plan),
        files={"profile": folder / "profile.yaml", "record": folder / "record.npz"},
        facts={"platform": {}},
        dtype="float32",
    )
    write_outcome(outcome, folder, "result.json")
    shutil.rmtree(folder / "traces")
    damaged = ["traces.json.gz", "runs.json.gz", "profile.yaml", "record.npz"]
    return ["result.json", "result.json", "traces.json.gz", *damaged]


def _read_result(folder: Path) -> Iterable[float]:
    data = read_report_data(folder / "result.json")
    page = render_report(data)
    shown = page.partition("<script")[0]
    words = ["nan" in shown.lower().replace("nano", "").split(), ">nan" in shown, ">inf" in shown]
    yield math.nan if any(words) else 0.0
    for result in data.results:
        yield result.candidate.tpot_s
        yield from (trace.decode_s for traces in result.measured for trace in traces)


PLAN_FILES: Final[dict[str, Kind]] = {
    "schedule": Kind(make=_make_schedule, read=lambda at: _of([load_schedule(at / "schedule.yaml")], *_machine())),
    "profile": Kind(
        make=_make_profile,
        read=lambda at: _of((PLAIN, MIRROR), load_profile(at / "profile.yaml"), _machine()[1]),
    ),
    "platform": Kind(
        make=_copied("platform", "h100x2"),
        read=lambda at: numbers(load_yaml(at / "sheet.yaml", Platform).model_dump()),
    ),
    "device": Kind(
        make=_copied("device", "h100-sxm"),
        read=lambda at: numbers(load_yaml(at / "sheet.yaml", DeviceSheet).model_dump()),
    ),
    "link": Kind(
        make=_copied("link", "nvlink-3"),
        read=lambda at: numbers(load_yaml(at / "sheet.yaml", LinkSheet).model_dump()),
    ),
    "space": Kind(make=_make_space, read=_read_space, is_slow=True),
    "record": Kind(make=_make_record, read=_read_record),
    "run file": Kind(make=_make_rows, read=_read_rows),
    "result": Kind(make=_make_result, read=_read_result, is_slow=True),
}
