"""What exit features are worth: the same draft with and without them, by method, exit layer and window, in both worlds.

    python benchmarks/exit_features.py --profile out/demo/profile.yaml

Records the first prompts of every kind of task, then runs every schedule on each of them in turn (A B C A B C) and
simulates the same. Tokens per round and hits do not depend on time; milliseconds do: nothing else should run. Writes
benchmarks/results/exit-features.json.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _common import EMBEDDED, RESULTS, arguments, markdown_table, measured_pair, read_result, show, write_result

from calibrate.prompts import bundled_prompts, take_per_category
from calibrate.recording.reach import Reach
from decoding.schedule import Schedule
from mirrorsd.compare.outcome_entries import schedule_entries
from mirrorsd.compare.validate_schedules import MeasuredBasis, validate
from mirrorsd.measure_pair import record
from mirrorsd.model_pair import find_pair

RESULT = RESULTS / "exit-features.json"
LANES = {"target_lane": "cpu0", "draft_lane": "cpu1"}
WINDOWS = (2, 4)
EXIT_LAYERS = (15, 20, 24)
DEEPEST_TAP = 20
"""Of the shipped draft: an exit before it cannot send its features."""


def main() -> None:
    """Measure and write the result file."""
    profile = (Path("out/demo/profile.yaml"), "of this machine")
    options = arguments(__doc__, out=RESULT, profile=profile, max_new_tokens=32).parse_args()
    write_result(options.out, _measured(options))


def sections() -> dict[str, str]:
    """Return the table of docs/training.md, by marker."""
    return {"features": table(read_result(RESULT))}


def table(result: Mapping[str, Any]) -> str:
    """One row for every schedule without features, and the same with them where the exit has them."""
    found = {_key(entry["schedule"]): entry for entry in result["schedules"]}
    header = ["window", "method", "tokens per round", "hits", "ms/token measured", "predicted"]
    rows = []
    for key, without in found.items():
        *same, has_features = key
        if has_features:
            continue
        both = [without, *filter(None, [found.get((*same, True))])]
        window, method, exit_layer = same
        name = method if exit_layer is None else f"{method}, exit after layer {exit_layer}"
        rows.append([str(window), name, *(" → ".join(figures) for figures in zip(*map(_figures, both), strict=True))])
    prompts = f"{result['num_prompts']} prompts, up to {result['max_new_tokens']} new tokens each."
    return f"{prompts}\n\n{markdown_table(header, rows)}"


def schedules() -> Iterator[Schedule]:
    """Synchronous speculation, and mirror from every exit, each without features and with them where it can."""
    for window in WINDOWS:
        for features in (False, True):
            common = {"num_speculative_tokens": window, "exit_features": features, **LANES}
            yield Schedule.model_validate({"method": "speculative", **common})
            for layer in EXIT_LAYERS:
                if layer >= DEEPEST_TAP or not features:
                    mirror = {"method": "mirror", "root_source": "exit", "exit_layer": layer, "exit_top_k": 4}
                    yield Schedule.model_validate(mirror | common)


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    prompts = take_per_category(bundled_prompts(), 1)
    pair = find_pair(EMBEDDED, heads=())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.npz"
        reach = Reach(max_new_tokens=options.max_new_tokens, max_window=max(WINDOWS))
        record(pair, prompts, path, reach=reach, num_threads=2)
        files = {Path(f"{place}.yaml"): schedule for place, schedule in enumerate(schedules())}
        outcome = validate(files, MeasuredBasis.load(options.profile, path), prompts, progress=show)
    entries = schedule_entries(outcome.judged)
    return outcome.facts | {"measured": measured_pair(pair), "schedules": entries}


def _key(schedule: Mapping[str, Any]) -> tuple[int, str, int | None, bool]:
    layer, features = schedule.get("exit_layer"), schedule.get("exit_features", False)
    return schedule["num_speculative_tokens"], schedule["method"], layer, features


def _figures(entry: Mapping[str, Any]) -> list[str]:
    measured, predicted = entry["measured"], entry["predicted"]
    hits = "-" if measured["reuse_rate"] is None else f"{measured['reuse_rate']:.0%}"
    length = f"{measured['mean_acceptance_length']:.2f}"
    return [length, hits, f"{1e3 * measured['tpot_s']:.1f}", f"{1e3 * predicted['tpot_s']:.1f}"]


if __name__ == "__main__":
    main()
