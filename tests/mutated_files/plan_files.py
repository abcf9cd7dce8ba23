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
from hwprofiles import model_shape as shapes
from hwprofiles.model_shape import model_shape
from hwprofiles.platform import Platform
from hwprofiles.profile import load_profile, save_profile
from hwprofiles.sheets import DeviceSheet, LinkSheet, shipped_file
from mirrorsd.cli.verbs.run import _summary
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.outcome_folder import Outcome, read_report_data, write_outcome
from mirrorsd.run_file import RunFile
from planner.imported.engine_page import Told
from planner.imported.import_file import import_files
from planner.plan import make_plan
from planner.report.report import render_report
from planner.reproduce import published_table
from planner.reproduce.published_table import load_table
from planner.search.search import search
from planner.search.space import SearchSpace
from sim.acceptance.assumed import parse_acceptance
from sim.evaluator import predict
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.mutated_files.kind import Kind, numbers
from tests.planner.imported.test_llama_bench import JSONL
from tests.planner.synthetic import EXIT_MIRROR as MIRROR
from tests.planner.synthetic import acceptance_record, coarse_sweeps, machine

SETTINGS: Final = {"dtype": "float32", "seed": 0, "schedule": {"method": "autoregressive", "target_lane": "target"}}
MODELS: Final = Path(shapes.__file__).parent / "models"
TABLES: Final = Path(published_table.__file__).parent
PAGES: Final = JSONL.parent
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


def _made_of(path: Path, name: str) -> Callable[[Path], list[str]]:
    """Copy a file that ships."""

    def make(folder: Path) -> list[str]:
        shutil.copy(path, folder / name)
        return [name]

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
    with coarse_sweeps():
        plan = make_plan(space, profile, record)
    candidates = plan.search.candidates[:3]
    runs = made_up_runs([one.schedule for one in candidates], profile, record)
    save_profile(profile, folder / "profile.yaml")
    record.save(folder / "record.npz")
    outcome = Outcome(
        title="a test",
        plan=plan,
        judged=judge_runs(candidates, runs, plan.profile, plan.record),
        files={"profile": folder / "profile.yaml", "record": folder / "record.npz"},
        facts={"platform": {}},
        dtype="float32",
    )
    write_outcome(outcome, folder, "result.json")
    shutil.rmtree(folder / "traces")
    damaged = ["traces.json.gz", "runs.json.gz", "profile.yaml", "record.npz"]
    return ["result.json", "result.json", "traces.json.gz", *damaged]


def _read_result(folder: Path) -> Iterable[float]:
    with coarse_sweeps():
        data = read_report_data(folder / "result.json")
    page = render_report(data)
    shown = page.partition("<script")[0]
    words = ["nan" in shown.lower().replace("nano", "").split(), ">nan" in shown, ">inf" in shown]
    yield math.nan if any(words) else 0.0
    for result in data.results:
        yield result.candidate.tpot_s
        yield from (trace.decode_s for trace in result.measured)


def _make_acceptance(folder: Path) -> list[str]:
    tree = {"method": "medusa", "drafter": "head", "depth": 2, "paths": [[0], [1], [0, 0]]}
    task = {"rates": [0.8, 0.75, 0.7], "alternative_rates": [0.3, 0.4], "exit_coverage": {15: [0.3, 0.4]}}
    texts = {"num_texts": 2, "num_tokens": 16, "prompt_length": 8}
    save_yaml({"tasks": {"qa": task | {"trees": [tree], "stream_rates": [0.5]}}, "texts": texts}, folder / "rates.yaml")
    return ["rates.yaml"]


def _read_acceptance(folder: Path) -> Iterable[float]:
    acceptance = parse_acceptance(str(folder / "rates.yaml"))
    for schedule in (PLAIN, MIRROR):
        if acceptance.missing(schedule) is None:
            yield predict(schedule, _machine()[0], acceptance).mean_acceptance_length


def _read_shape(folder: Path) -> Iterable[float]:
    shape = model_shape(folder / "shape.yaml")
    return [float(shape.num_parameters), shape.layer_flops(4, 100), shape.weight_bytes("int4")]


def _read_page(folder: Path) -> Iterable[float]:
    told = Told(target="llama-3.1-8b", window=3, batch_size=1, new_tokens=4)
    found = import_files(list(folder.iterdir()), told)
    times_s = [time.time_s for curve in found.curves for time in curve.times.values()]
    yield from (time_s if time_s > 0 else math.nan for time_s in times_s)
    yield from (rate if 0 <= rate <= 1 else math.nan for one in found.acceptance for rate in one.rates)


PLAN_FILES: dict[str, Kind] = {
    "schedule": Kind(make=_make_schedule, read=lambda at: _of([load_schedule(at / "schedule.yaml")], *_machine())),
    "profile": Kind(
        make=_make_profile, read=lambda at: _of((PLAIN, MIRROR), load_profile(at / "profile.yaml"), _machine()[1])
    ),
    "platform": Kind(
        make=_made_of(shipped_file("platform", "h100x2"), "sheet.yaml"),
        read=lambda at: numbers(load_yaml(at / "sheet.yaml", Platform).model_dump()),
    ),
    "device": Kind(
        make=_made_of(shipped_file("device", "h100-sxm"), "sheet.yaml"),
        read=lambda at: numbers(load_yaml(at / "sheet.yaml", DeviceSheet).model_dump()),
    ),
    "link": Kind(
        make=_made_of(shipped_file("link", "nvlink-3"), "sheet.yaml"),
        read=lambda at: numbers(load_yaml(at / "sheet.yaml", LinkSheet).model_dump()),
    ),
    "acceptance": Kind(make=_make_acceptance, read=_read_acceptance),
    "shape": Kind(make=_made_of(MODELS / "qwen3-14b.yaml", "shape.yaml"), read=_read_shape),
    "table": Kind(
        make=_made_of(TABLES / "mirror-sd-qwen3-14b.csv", "table.csv"),
        read=lambda at: [cell.mirror or cell.vanilla for cell in load_table(at / "table.csv").cells],
    ),
    "space": Kind(make=_make_space, read=_read_space, is_slow=True),
    "record": Kind(make=_make_record, read=_read_record),
    "run file": Kind(make=_make_rows, read=_read_rows),
    "result": Kind(make=_make_result, read=_read_result, is_slow=True),
}
PLAN_FILES |= {
    f"an engine's {page.name}": Kind(make=_made_of(page, page.name), read=_read_page)
    for page in sorted(PAGES.rglob("*"))
    if page.is_file() and page.name not in ("attention.csv", "per_sequence.csv")  # nothing without their folder
}
