"""A demo that was kept, by today's simulator and today's rules. What it said when it was made stays in its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _common import read_result

from mirrorsd.compare.outcome import schedule_entries, speedup_entry
from mirrorsd.compare.outcome_folder import read_judged


def recomputed(folder: Path) -> dict[str, Any]:
    """Return the result of a demo's folder, its predictions made again from the profile and the record that it keeps.

    Predictions are of the texts that each schedule has run, and the answer is what follows from these runs today.
    """
    judged = read_judged(folder / "demo.json")
    verdict = judged.answer
    answer = {"pays": None, "speedup": None, "winner": None}
    if verdict is not None:
        answer = {"pays": verdict.pays, "speedup": speedup_entry(verdict.speedup), "winner": verdict.recommended}
    return read_result(folder / "demo.json") | answer | {"schedules": schedule_entries(judged)}
