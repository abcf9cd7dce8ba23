"""A demo that was kept, judged by today's rules: its runs are compared again, its predictions stay as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _common import read_result

from mirrorsd.compare.numbers import ratio_entry
from mirrorsd.compare.outcome_folder import read_report_data


def judged_again(folder: Path) -> dict[str, Any]:
    """Return the result of a demo's folder, with the answer and the speed-ups that follow from its runs."""
    demo, found = read_result(folder / "demo.json"), read_report_data(folder / "demo.json")
    verdict = found.measured
    if verdict is None:
        return demo
    speedups = [dict(zip(("value", "low", "high"), one.speedup, strict=True)) for one in found.results if one.speedup]
    return demo | {
        "pays": verdict.pays,
        "winner": verdict.recommended,
        "speedup": ratio_entry(verdict.speedup),
        "schedules": [
            entry | {"speedup_measured": speedup} for entry, speedup in zip(demo["schedules"], speedups, strict=True)
        ],
    }
