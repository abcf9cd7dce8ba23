"""Predictions of public measurements of speculation, as they were made: by which commit, and what was known before.

    python benchmarks/retrodictions.py              seconds

Writes benchmarks/results/retrodictions.json. The cases of public-cases.yaml were known when their predictor was built:
they are in-sample, though only `RATIO_ERROR` was set after they were seen. A column of blind cases is added by who has
some (`--blind FILE`): a file of the same form whose speeds nobody looked at before.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

from _common import RESULTS, arguments, write_result

from planner.retrodict.cases import load_cases
from planner.retrodict.retrodiction import retrodict, worth

OUT: Final = RESULTS / "retrodictions.json"
CASES: Final = Path(__file__).with_name("public-cases.yaml")
_KEPT: Final = ("id", "question", "drafted", "context", "published", "predicted", "low", "high", "error")


def main() -> None:
    """Predict, and write what was predicted."""
    blind = arguments(__doc__, blind=Path).parse_args().blind
    columns = {"in-sample": column(CASES)} | ({} if blind is None else {"blind": column(blind)})
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S607
    write_result(OUT, {"measured": {}, "commit": said.stdout.strip(), "columns": columns})
    for name, found in columns.items():
        print(name, found["in_words"])


def column(file: Path) -> dict[str, Any]:
    """Return predictions of a file's cases, and how far off they are."""
    found = retrodict(load_cases(file))
    entries = [one.as_entry() for one in found.found]
    cases = [{key: _short(entry[key]) for key in _KEPT} for entry in entries]
    return {"in_words": worth(found), "summary": found.summary(), "cases": cases}


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
