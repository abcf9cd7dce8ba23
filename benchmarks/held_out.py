"""How good predictions are of what nobody has measured: a machine is calibrated once, and other prompts are predicted.

    python benchmarks/held_out.py                     half an hour: quiet cells about 20 minutes, busy ones 7
    python benchmarks/held_out.py --quiet             without the busy ones
    python benchmarks/held_out.py --series 2          once more on the same day, with a calibration of its own
    python benchmarks/held_out.py --profile FILE      with a profile of an earlier day, of benchmarks/results/held-out/

The calibration knows a range of lengths and no prompt: up to 1,900 tokens of prompt and 1,024 of answer. Cells are
answers of up to 32, 256 and 1,024 tokens to short prompts, and of 64 to long ones; none of the prompts is of the demo's
set, and no two cells share one. Every calibration draws other prompts, by a seed of its day and number; those before
29 November 2026 all drew by seed 2026, with one prompt for 1,024 tokens and two long ones. Busy cells are some of these
prompts next to a process that keeps a core at work, predicted as if it were not there. The schedules are the best of
their kind and placement by prediction for the first cell. What is predicted of a cell is written before it is run; from
30 November 2026 on, it is for the machine's speed just before, and rows have what it would be without that as well.

Writes benchmarks/results/held-out.json, a row for every schedule in every run, and keeps the profile in
benchmarks/results/held-out/. Rows of other machines and days stay. What this machine has done today is not done again,
so that a run that was interrupted goes on with the same command: a cell is recorded when it is due, and written when it
is over. Records are in out/held-out/ meanwhile. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from _common import EMBEDDED, RESULTS, arguments, formats, measured_pair, out_of_date, read_result, write_result
from _held_out_cells import (
    LONGEST_ANSWER,
    Basis,
    Cell,
    Json,
    at_present,
    best_of_kinds,
    cells,
    longest_prompt,
    measured_rows,
    predicted,
    predicted_rows,
    run_facts,
)
from _held_out_rows import is_done, summary, with_run

from calibrate.profiling.anchors import Anchors
from calibrate.prompts import EncodedPrompt, bundled_prompts
from calibrate.recording.reach import Reach
from decoding.methods import METHODS
from decoding.record import AcceptanceRecord
from hwprofiles.host import describe_host, differences
from hwprofiles.other_use import OtherUse
from hwprofiles.profile import Profile, load_profile, save_profile
from mirrorsd.compare.present_pace import paces_now
from mirrorsd.compare.run_in_turn import anchors_of, run_in_turn
from mirrorsd.compare.validate_schedules import matching_prompts
from mirrorsd.lane_choice import profile_lanes
from mirrorsd.measure_pair import calibrate, contexts_of, record
from mirrorsd.model_pair import ModelPair, find_pair
from mirrorsd.prompt_tokens import encode, num_tokens
from mirrorsd.text_engine import new_engine
from runtime.engine import Engine

RESULT: Final = RESULTS / "held-out.json"
_BUSY: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

Say = Callable[[str, float], None]


class Lanes(NamedTuple):
    """Where schedules run: an engine, and anchors on its lanes."""

    engine: Engine
    anchors: Anchors


def main() -> None:
    """Predict and run every cell that is missing."""
    options = arguments(
        __doc__,
        out=RESULT,
        profile=(Path, "a kept one of this machine, whose name begins with its date"),
        series=(1, "number of the calibration of this day"),
        quiet=(False, "leave out busy cells"),
        minutes=(3.0, "of the calibration"),
        work=(Path("out") / "held-out", "for records of this run"),
    ).parse_args()
    pair = find_pair(EMBEDDED)
    kept = _kept(options.out, measured_pair(pair))
    here = {"machine": machine_of(describe_host()), "date": date.today().isoformat()}
    name = _name(here) + (f"-{options.series}" if options.series > 1 else "")
    path = options.profile or _calibrated(pair, options.out.parent / "held-out" / f"{name}.yaml", options)
    profile = _of_this_machine(path)
    seed = int(here["date"].replace("-", "")) + options.series - 1
    facts = here | {"profile": path.name, "same_day": _date_of(path) == here["date"], "seed": seed}
    chosen = cells(seed)
    runs = [(cell, False) for cell in chosen]
    runs += [(cell, True) for cell in chosen if cell.num_busy and not options.quiet]
    missing = [(cell, busy) for cell, busy in runs if not is_done(kept["rows"], facts | run_facts(cell, busy=busy))]
    if missing:
        work = options.work / f"{_name(here)}-{seed}"
        schedules = best_of_kinds(profile, _record(pair, chosen[0], work))
        basis = Basis(profile=profile, facts=facts, schedules=schedules)
        with new_engine(pair, profile_lanes(profile)) as engine:
            lanes = Lanes(engine, anchors_of(engine, profile))
            for cell, busy in missing:
                accepted, encoded = _record(pair, cell, work), encode(cell.prompts, pair.target_folder)
                _run_cell(basis, lanes, cell, accepted, encoded, partial(_write, kept, options.out), busy=busy)
    print(json.dumps(summary(kept["rows"]), indent=2))


def _run_cell(
    basis: Basis,
    lanes: Lanes,
    cell: Cell,
    accepted: AcceptanceRecord,
    encoded: Sequence[EncodedPrompt],
    write: Callable[[Sequence[Json]], None],
    *,
    busy: bool,
) -> None:
    """Predict a cell for the machine's present speed and write that; run it and write that as well."""
    run, title = run_facts(cell, busy=busy), f"{cell.name}, {'busy' if busy else 'quiet'}"
    accepted = replace(accepted, prompts=accepted.prompts[: run["num_prompts"]])
    as_calibrated = predicted(basis.profile, basis, accepted)
    runs_s, schedules = sum(one.prediction.decode_s for one in as_calibrated), [one.schedule for one in as_calibrated]
    basis = at_present(basis, paces_now(lanes.engine, lanes.anchors, schedules, basis.profile, runs_s=runs_s))
    candidates, rows = predicted_rows(basis, as_calibrated, accepted, run)
    write(rows)
    prompts, others = matching_prompts(encoded, accepted), OtherUse()
    with _one_core_at_work(wanted=busy):
        measured = run_in_turn(
            lanes.engine,
            schedules,
            prompts,
            lanes.anchors,
            cuts=[cell.max_new_tokens] * len(prompts),
            progress=_saying(title),
        )
    others_used = others.so_far()
    found = measured_rows(rows, candidates, measured, basis, accepted)
    write([row | {"others_share": others_used and others_used.share} for row in found])
    for row in found:
        print(f"{title}: {row['name']}, {1e3 * row['measured']['tpot_s']:.1f} ms, {row['tpot_error']:+.1%}", flush=True)


def _write(kept: Json, out: Path, rows: Sequence[Json]) -> None:
    kept["rows"] = with_run(kept["rows"], rows)
    write_result(out, {"summary": summary(kept["rows"])} | kept)


def _kept(out: Path, weights: Mapping[str, str]) -> Json:
    """Return what is in the result file, which has to be about the same weights."""
    if not out.exists():
        return {"measured": dict(weights), "formats": formats(), "rows": []}
    kept = read_result(out)
    if changed := out_of_date(kept, weights):
        raise SystemExit(f"{out}: is about other weights or formats ({', '.join(changed)}); remove it")
    return {name: value for name, value in kept.items() if name != "summary"}


def machine_of(host: Mapping[str, Any]) -> Json:
    """Return what rows say of a machine."""
    return {name: host[name] for name in ("cpu_model", "instruction_sets")} | {"num_cores": len(host["cores"])}


def _name(here: Json) -> str:
    """Return a name for what belongs to this machine and day."""
    identity = hashlib.sha256(json.dumps(here["machine"], sort_keys=True).encode()).hexdigest()
    return f"{here['date']}-{identity[:8]}"


def _calibrated(pair: ModelPair, path: Path, options: argparse.Namespace) -> Path:
    """Return the path of this machine's profile of today, which is made where there is none."""
    if not path.exists():
        lengths = num_tokens((*bundled_prompts("pool"), *bundled_prompts("long"), longest_prompt()), pair.target_folder)
        whole = options.work / path.stem / "profile.yaml"
        whole.parent.mkdir(parents=True, exist_ok=True)
        contexts, time_s = contexts_of(lengths, LONGEST_ANSWER), 60 * options.minutes
        found = calibrate(pair, whole, contexts=contexts, quick=True, time_s=time_s, progress=_saying("calibrating"))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_profile(found.model_copy(update={"samples": None}), path)
    return path


def _of_this_machine(path: Path) -> Profile:
    profile = load_profile(path)
    if found := differences(profile.host):
        raise SystemExit(f"{path}: is of another machine ({found}); its times are not to be expected here")
    return profile


def _date_of(path: Path) -> str:
    """Return the day on which a profile was made, which its name begins with."""
    try:
        return date.fromisoformat(path.name[:10]).isoformat()
    except ValueError:
        raise SystemExit(f"{path}: its name should begin with the date of its calibration, as 2026-11-30") from None


def _record(pair: ModelPair, cell: Cell, work: Path) -> AcceptanceRecord:
    """Return the record of a cell's prompts; one that was made before an interruption is taken as it is."""
    path = work / f"{cell.name}-{len(cell.prompts)}x{cell.max_new_tokens}.npz"
    if path.exists():
        return AcceptanceRecord.load(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    finders = tuple(head for head in pair.heads if METHODS[pair.head_methods[head.name]].finds_text)
    reach = Reach(max_new_tokens=cell.max_new_tokens, trees=())
    title = f"recording {cell.name}"
    return record(replace(pair, heads=finders), cell.prompts, path, reach=reach, progress=_saying(title))


@contextmanager
def _one_core_at_work(*, wanted: bool) -> Iterator[None]:
    """Keep one core at work, whichever the system chooses, by a process that ends with this one."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as child:
        try:
            yield
        finally:
            child.kill()


def _saying(title: str) -> Say:
    """Return what prints progress, a line for every twentieth."""
    told = -1

    def say(step: str, share: float, /) -> None:
        nonlocal told
        if int(20 * share) > told:
            told = int(20 * share)
            print(f"{time.strftime('%H:%M:%S')} {title}, {share:.0%}: {step}", flush=True)

    return say


if __name__ == "__main__":
    main()
