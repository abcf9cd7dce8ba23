"""Predictions of public measurements of speculation, as they were made: by which commit, and what was known before.

    python benchmarks/retrodictions.py              some seconds

Writes benchmarks/results/retrodictions.json, in columns:

- `in-sample`: public-cases.yaml, known when the predictor was built
- `first`: more-cases.yaml by the code before anybody had looked at their speeds, so it is kept as it was written
- `blind`: blind-cases.yaml by the code before anybody had looked at their speeds, kept as it was written too
- `blind again`: blind-cases-more.yaml likewise, after the misses of `blind` had been looked at
- `blind, third`: blind-cases-third.yaml likewise, by the same predictor
- `seen`: the cases of the four by today's code; their misses were looked at since, to mend causes

and where their errors are from: `gains_by_acceptance`, of gains whose source tells how many drafted tokens were
accepted, and of others; and `parts`, of those seen that tell it and the plain speed too, what the plain speed, the
tokens of a round and its cost in plain passes are off by alone, and the speed, which has all three.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from _common import RESULTS, arguments, write_result

from planner.retrodict.cases import Case, PublishedSpeed, load_cases
from planner.retrodict.predicted_speeds import PredictedCase
from planner.retrodict.retrodiction import Retrodiction, retrodict, worth
from planner.retrodict.windows import window_of

OUT: Final = RESULTS / "retrodictions.json"
CASES: Final = Path(__file__).with_name("public-cases.yaml")
MORE_CASES: Final = Path(__file__).with_name("more-cases.yaml")
BLIND_CASES: Final = Path(__file__).with_name("blind-cases.yaml")
MORE_BLIND_CASES: Final = Path(__file__).with_name("blind-cases-more.yaml")
THIRD_BLIND_CASES: Final = Path(__file__).with_name("blind-cases-third.yaml")
SEEN: Final = (MORE_CASES, BLIND_CASES, MORE_BLIND_CASES, THIRD_BLIND_CASES)
BLIND: Final = ("blind", "blind again", "blind, third")
_KEPT: Final = ("id", "question", "drafted", "context", "published", "predicted", "low", "high", "error")


def main() -> None:
    """Predict, and write what was predicted."""
    arguments(__doc__).parse_args()
    known = json.loads(OUT.read_text(encoding="utf-8"))["columns"]
    kept = {name: known[name] for name in ("first", *BLIND)}
    seen = [case for file in SEEN for case in load_cases(file)]
    found = retrodict(seen)
    columns = {"in-sample": column(retrodict(load_cases(CASES))), **kept, "seen": column(found)}
    cases = [case for case in (*load_cases(CASES), *seen) if isinstance(case, Case)]
    sources = {"gains_by_acceptance": gains_by_acceptance(columns, cases), "parts": parts(found)}
    write_result(OUT, {"measured": {}, "commit": _commit(), **sources, "columns": columns})
    for name, of in columns.items():
        print(name, of["in_words"])
    print(*sources.items(), sep="\n")


def gains_by_acceptance(columns: Mapping[str, Mapping[str, Any]], cases: Sequence[Case]) -> dict[str, Any]:
    """Return errors of gains by column, and of the blind ones together, by whether acceptance is told of them."""
    told = {(case.id, one.key) for case in cases for one in case.measured if _is_acceptance_told(one)}
    gains = {name: [one for one in of["cases"] if one["question"] == "ratio"] for name, of in columns.items()}
    gains["all blind"] = [one for name in BLIND for one in gains[name]]
    found = dict[str, Any]()
    for name, of in gains.items():
        known = [one for one in of if (one["id"], str(one["drafted"])) in told]
        found[name] = {"told": _judged(known), "assumed": _judged([one for one in of if one not in known])}
    return found


def _is_acceptance_told(one: PublishedSpeed) -> bool:
    """Return whether a source tells the acceptance of the very setting."""
    return one.share is not None and not one.is_share_of_another


def _judged(gains: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    coverage = fmean(one["low"] <= one["published"] <= one["high"] for one in gains)
    return {"num": len(gains), "median_abs_error": _median(one["error"] for one in gains), "coverage": _short(coverage)}


def parts(found: Retrodiction) -> dict[str, Any]:
    """Return what each part of a speed is off by alone where all of them are told, and what the speed is."""
    speeds = {(one.case.id, one.speed): one.error for one in found.of("absolute")}
    errors = defaultdict[str, list[float]](list)
    for one in found.of("ratio"):
        case, speed = one.case, one.speed
        if (case.id, speed) in speeds and speed.plain is not None and _is_acceptance_told(speed):
            predictor = PredictedCase.of(case)
            usual, told = (
                window_of(predictor.draft, speed, case.engine, share).committed.tokens for share in (None, speed.share)
            )
            errors["plain speed"].append(1 / predictor.plain_s(speed.context) / speed.plain - 1)
            errors["tokens of a round"].append(usual / told - 1)
            errors["cost of a round"].append(1 / (1 + one.error) - 1)
            errors["speed"].append(speeds[case.id, speed])
    return {"num": len(errors["speed"]), **{name: _median(of) for name, of in errors.items()}}


def _median(errors: Iterable[float]) -> float:
    return float(_short(median(map(abs, errors))))


def column(found: Retrodiction) -> dict[str, Any]:
    """Return predictions of some cases, and how far off they are."""
    entries = [one.as_entry() for one in found.found]
    kept = [{key: _short(entry[key]) for key in _KEPT} for entry in entries]
    return {"in_words": worth(found), "summary": found.summary(), "cases": kept}


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S607
    return found.stdout.strip()


if __name__ == "__main__":
    main()
