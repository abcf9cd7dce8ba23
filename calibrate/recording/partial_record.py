"""What is there of a record that is still being made, so that an interrupted recording goes on."""

from __future__ import annotations

import glob
from pathlib import Path

from decoding.record import AcceptanceRecord, PromptRecord


class PartialRecord:
    """The prompts recorded so far, in a file whose name is that of the record and its fingerprint."""

    def __init__(self, path: Path, name: str) -> None:
        self._final_name = path.name
        self.path = path.with_name(f".{path.name}.{name}.npz")

    def load(self) -> list[PromptRecord]:
        """What an interrupted run left, or nothing."""
        return list(AcceptanceRecord.load(self.path).prompts) if self.path.exists() else []

    def save(self, record: AcceptanceRecord) -> None:
        """Keep what is done."""
        record.save(self.path)

    def remove(self) -> None:
        """Remove it, and whatever interrupted runs of other settings left for the same record."""
        for file in self.path.parent.glob(f".{glob.escape(self._final_name)}.*.npz"):
            file.unlink(missing_ok=True)
