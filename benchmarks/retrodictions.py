"""Predictions of public measurements of speculation, as they were made: by which commit, and what was known before.

    python benchmarks/retrodictions.py              some minutes

Writes benchmarks/results/retrodictions.json, in columns:

- `in-sample`: public-cases.yaml, known when the predictor was built
- `first`: more-cases.yaml by the code before anybody had looked at their speeds, so it is kept as it was written
- `blind`: blind-cases.yaml by the code before anybody had looked at their speeds, kept as it was written too
- `blind again`: blind-cases-more.yaml likewise, after the misses of `blind` had been looked at
- `blind, third`: blind-cases-third.yaml likewise, by the same predictor
- `seen`: the cases of the four by today's code; their misses were looked at since, to mend causes
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from _common import RESULTS, arguments, write_result

from planner.retrodict.cases import Case, load_cases
from planner.retrodict.retrodiction import retrodict, worth

OUT: Final = RESULTS / "retrodictions.json"
CASES: Final = Path(__file__).with_name("public-cases.yaml")
MORE_CASES: Final = Path(__file__).with_name("more-cases.yaml")
BLIND_CASES: Final = Path(__file__).with_name("blind-cases.yaml")
MORE_BLIND_CASES: Final = Path(__file__).with_name("blind-cases-more.yaml")
THIRD_BLIND_CASES: Final = Path(__file__).with_name("blind-cases-third.yaml")
SEEN: Final = (MORE_CASES, BLIND_CASES, MORE_BLIND_CASES, THIRD_BLIND_CASES)
_KEPT: Final = ("id", "question", "drafted", "context", "published", "predicted", "low", "high", "error")


def main() -> None:
    """Predict, and write what was predicted."""
    arguments(__doc__).parse_args()
    known = json.loads(OUT.read_text(encoding="utf-8"))["columns"]
    kept = {name: known[name] for name in ("first", "blind", "blind again", "blind, third")}
    seen = [case for file in SEEN for case in load_cases(file)]
    columns = {"in-sample": column(load_cases(CASES)), **kept, "seen": column(seen)}
    write_result(OUT, {"measured": {}, "commit": _commit(), "columns": columns})
    for name, found in columns.items():
        print(name, found["in_words"])


def column(cases: Sequence[Case]) -> dict[str, Any]:
    """Return predictions of some cases, and how far off they are."""
    found = retrodict(cases)
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
