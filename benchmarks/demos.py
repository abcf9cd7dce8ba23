"""How good predictions are: demos one after the other, none left out, and all that is needed to work it out again.

    python benchmarks/demos.py                     five demos, about half an hour
    python benchmarks/demos.py --torch             the same on lanes of torch
    python benchmarks/demos.py --series avx2       the same on a machine of another kind, under its own name
    python benchmarks/demos.py --count 0           runs none, works out the summary of those that are there

Of each demo benchmarks/results/demos/NUMBER/ keeps the result, the profile with its samples, the acceptance record, and
the traces of the real runs; `mirrorsd report` makes its page again from them. One that is there is not run again, and
none about other weights is taken among them. A demo that fails ends the series: it is to be mended, not left out.
Writes benchmarks/results/demos.json. With --torch it writes demos-torch.json and keeps the demos in out/demos-torch/,
which is not committed, and likewise with --series: one series of raw demos is enough to replay. Nothing else should run
on the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from shutil import copyfile
from statistics import fmean, median
from typing import Any, Final

from _common import (
    EMBEDDED,
    RESULTS,
    arguments,
    formats,
    measured_pair,
    out_of_date,
    read_result,
    write_result,
)
from _demo_machine import machine
from _held_out_rows import is_within, lanes_of, share_of

from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import load_profile
from mirrorsd.compare.measured_answer import JudgedRuns
from mirrorsd.compare.outcome_entries import schedule_entries, speedup_entry
from mirrorsd.compare.outcome_folder import read_judged
from mirrorsd.model_pair import find_pair
from planner.report.report_data import ScheduleResult

ROOT = Path(__file__).parents[1]
DEMO: Final = "demo.json"
RUN: Final = "run.json"
"""What the demo cannot know of itself."""
_TORCH: Final = ("--device", "cpu")

Json = Mapping[str, Any]


def main() -> None:
    """Run the demos that are missing, and write the summary."""
    options = arguments(
        __doc__, count=5, torch=(False, "on lanes of torch"), series=("", "name of another machine's demos")
    ).parse_args()
    name = "-".join(["demos", *["torch"] * options.torch, *[options.series] * bool(options.series)])
    kept = RESULTS / name if name == "demos" else ROOT / "out" / name
    wanted = [kept / str(number) for number in range(1, options.count + 1)]
    missing = [folder for folder in wanted if not folder.exists()]
    if missing:
        weights = {"measured": measured_pair(find_pair(EMBEDDED)), "formats": formats()}
        _require_same(numbered(kept), weights["measured"])
    for folder in missing:
        out, wall_s = _demo(Path("out") / "demo-runs" / name / folder.name, *(_TORCH if options.torch else ()))
        keep(out, folder, weights | {"wall_s": wall_s})
    if folders := numbered(kept):
        content = summary(folders)
        write_result(RESULTS / f"{name}.json", content)
        print(json.dumps(content["all"], indent=2))


def keep(out: Path, folder: Path, facts: Json) -> None:
    """Copy what a demo wrote into `out` that its figures can be worked out from, whole or not at all."""
    files = {DEMO, *read_result(out / DEMO)["files"].values()}
    if samples := load_profile(out / "profile.yaml").samples:
        files.add(samples)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as work:
        whole = Path(work) / folder.name
        whole.mkdir()
        for file in sorted(files):
            (whole / file).parent.mkdir(parents=True, exist_ok=True)
            copyfile(out / file, whole / file)
        write_result(whole / RUN, facts)
        whole.rename(folder)


def numbered(folder: Path) -> list[Path]:
    """The demos in a folder, by number."""
    return sorted((path for path in folder.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name))


def summary(folders: Sequence[Path]) -> dict[str, Any]:
    """Figures of every demo and of all together, from what was kept of them.

    They are of predictions as they were made before the runs; `as_calibrated` has today's without the machine's speed
    just before the runs, and `recomputed` has the same ones of predictions that
    today's simulator makes from the profile and the record of each demo, and the answer that today's rules give.
    """
    demos, runs = ([read_result(folder / name) for folder in folders] for name in (DEMO, RUN))
    again = [recomputed(folder) for folder in folders]
    return {
        "platform": demos[0]["platform"],
        "measured": runs[0]["measured"],
        "formats": runs[0]["formats"],
        "all": {"num_demos": len(demos)} | _answers(demos) | {"recomputed": _answers(again)},
        "as_calibrated": figures([recomputed(folder, as_calibrated=True) for folder in folders]),
        "rounds": round_errors([result for folder in folders for result in judged(folder).results]),
        "machine": machine(folders),
        "demos": {
            folder.name: _facts(demo, run)
            | figures([demo])
            | {"recomputed": _recomputed_facts(now), "num_bytes": _num_bytes(folder)}
            for folder, demo, run, now in zip(folders, demos, runs, again, strict=True)
        },
    }


def recomputed(folder: Path, *, as_calibrated: bool = False) -> dict[str, Any]:
    """Return a demo's result by today's simulator and today's rules, from the profile and the record that it keeps.

    Predictions are of the texts that each schedule has run, and the answer is what follows from these runs today.
    """
    found = judged(folder, as_calibrated=as_calibrated)
    verdict, without = found.answer, found.speedup_without
    answer = {"pays": None, "speedup": None, "winner": None}
    if verdict is not None:
        answer = {"pays": verdict.pays, "speedup": speedup_entry(verdict.speedup), "winner": verdict.recommended}
    answer["without_repeating"] = without and {"value": without.value, "outcome": without.outcome}
    return read_result(folder / DEMO) | answer | {"schedules": schedule_entries(found)}


@cache
def judged(folder: Path, *, as_calibrated: bool = False) -> JudgedRuns:
    """Return a demo's runs next to what today's simulator predicts of them, for the speed just before the runs or not.

    Demos of before 30 November 2026 do not know it.
    """
    return read_judged(folder / DEMO, as_calibrated=as_calibrated)


def figures(demos: Sequence[Json]) -> dict[str, Any]:
    """How good the predictions of some demos are, all their schedules together.

    `error` is of times per token as they were calibrated, `error_at_anchor` of times at the speed that
    predictions are for, and `ratio_error` of ratios of two times as they were, on the same lanes of one demo; each is
    the median and the worst without its sign. `actual_coverage` counts the 90 % intervals that hold the measured time,
    `interval_coverage` those that hold it at the anchors' speed, `rounds_equal` the texts that went through the
    simulated rounds. `first_token` is the error of the time to the first token, and its mean with its sign.
    """
    entries = [entry for demo in demos for entry in demo["schedules"]]
    covered, covered_at_anchor = (
        share_of(is_within(entry["measured"][time], entry["predicted"], "tpot_s_") for entry in entries)
        for time in ("tpot_s", "tpot_s_at_anchor")
    )
    rounds = [entry["rounds_equal"] for entry in entries]
    first_token = [entry["ttft"]["error"] for entry in entries if entry.get("ttft")]
    return {
        "num_schedules": len(entries),
        "first_token": {**(_spread(first_token) or {}), "mean": fmean(first_token)} if first_token else None,
        "error": _spread([entry["tpot_error"] for entry in entries]),
        "error_at_anchor": _spread([entry["tpot_error_at_anchor"] for entry in entries]),
        "ratio_error": _spread([error for demo in demos for error in ratio_errors(demo["schedules"])]),
        "actual_coverage": covered,
        "interval_coverage": covered_at_anchor,
        "rounds_equal": {key: sum(each[key] for each in rounds) for key in ("equal", "of")},
    }


def ratio_errors(entries: Sequence[Json]) -> Iterator[float]:
    """Predicted over measured ratio, minus one, of every two schedules whose target and draft have the same lanes.

    What decodes without a lane for drafts counts as drafting on the target's.
    """
    for one, other in combinations(entries, 2):
        if lanes_of(one) == lanes_of(other):
            predicted, measured = (one[world]["tpot_s"] / other[world]["tpot_s"] for world in ("predicted", "measured"))
            yield predicted / measured - 1


def round_errors(results: Sequence[ScheduleResult]) -> dict[str, Any]:
    """Return predicted over measured time of rounds, minus one, by their place in a text and by how lanes work.

    Lanes decode without drafts (`plain`), share their cores (`pooled`), take turns or work at once. Texts that left the
    simulated rounds do not count; each schedule's times are at the speed that predictions are for.
    """
    seconds = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    for result in results:
        pace = result.measured_s / result.measured_at_anchor_s
        for simulated, measured in zip(result.simulated, result.measured, strict=True):
            if [one.outcome for one in simulated.rounds] == [one.outcome for one in measured.rounds]:
                both = zip(_round_s(simulated), _round_s(measured), strict=True)
                for number, (predicted_s, measured_s) in enumerate(both):
                    place = ("first", "second", "later")[min(number, 2)]
                    seconds[_kind(result.candidate.schedule), place].append((predicted_s, measured_s / pace))
    found = defaultdict[str, dict[str, Any]](dict)
    for (kind, place), pairs in sorted(seconds.items()):
        predicted_s, measured_s = map(sum, zip(*pairs, strict=True))
        found[kind][place] = {"error": predicted_s / measured_s - 1, "of": len(pairs)}
    return found


def _kind(schedule: Schedule) -> str:
    if schedule.num_rows == 1:
        return "plain"
    if schedule.draft_lane is None or schedule.is_pooled:
        return "pooled"
    return "at once" if schedule.traits.overlaps else "in turn"


def _round_s(trace: Trace) -> list[float]:
    ends = [0.0, *(one.end_s for one in trace.rounds)]
    return [after - before for before, after in pairwise(ends)]


def _require_same(folders: Sequence[Path], today: Mapping[str, str]) -> None:
    """Refuse to add demos to those of other weights."""
    for folder in folders:
        if changed := out_of_date(read_result(folder / RUN), today):
            raise SystemExit(f"{folder}: is about other weights or formats ({', '.join(changed)}); remove it")


def _demo(out: Path, *given: str) -> tuple[Path, float]:
    """Run the product as a user does; its folder, and how long it took with all that it loads."""
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mirrorsd", "demo", "--out", str(out), *given], check=True, cwd=ROOT)
    return ROOT / out, time.perf_counter() - start_s


def _answers(demos: Sequence[Json]) -> dict[str, Any]:
    return {"pays": [demo["pays"] for demo in demos]} | figures(demos)


def _recomputed_facts(demo: Json) -> dict[str, Any]:
    """Return the same figures by today's simulator, and all its times, so that no change of one goes unseen."""
    predicted_s = {entry["name"]: entry["predicted"]["tpot_s"] for entry in demo["schedules"]}
    own = {name: demo[name] for name in ("pays", "speedup", "winner", "without_repeating")}
    return own | {"winner_speedup": _winner_speedup(demo)} | figures([demo]) | {"predicted_tpot_s": predicted_s}


def _winner_speedup(demo: Json) -> Json | None:
    """Return how many times as fast as plain decoding the recommended schedule was; None where none is."""
    return next((one["speedup_measured"] for one in demo["schedules"] if one["name"] == demo["winner"]), None)


def _facts(demo: Json, run: Json) -> dict[str, Any]:
    names = ("created", "num_prompts", "pays", "speedup", "winner", "busy", "notes", "rounds", "total_s")
    newer = ("seed", "num_recorded_prompts", "max_new_tokens", "by_length", "turns_at")
    told = {name: demo[name] for name in (*names, *newer) if name in demo}
    return told | {"winner_speedup": _winner_speedup(demo), "wall_s": run["wall_s"]}


def _spread(errors: Sequence[float]) -> dict[str, float] | None:
    """Of errors without their signs; None of no errors."""
    sizes = [abs(error) for error in errors]
    return {"median": median(sizes), "worst": max(sizes), "of": len(sizes)} if sizes else None


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
