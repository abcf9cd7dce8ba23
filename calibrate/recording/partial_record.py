"""What is there of a record that is still being made, so that an interrupted recording goes on."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.recorded_models import RecordedModels
from decoding.record import AcceptanceRecord, PromptRecord
from decoding.recorded.record_checks import FORMAT
from hwprofiles.host import computing_host

if TYPE_CHECKING:
    from calibrate.recording.recorder import RecordSettings

_VALUES_PER_WEIGHT: Final = 16


class PartialRecord:
    """The prompts recorded so far, in a file whose name is that of the record and its fingerprint."""

    def __init__(self, path: Path, name: str) -> None:
        self._final_name = path.name
        self.path = path.with_name(f".{path.name}.{name}.npz")

    def load(self) -> list[PromptRecord]:
        """What an interrupted run left, or nothing."""
        return list(AcceptanceRecord.load(self.path).prompts) if self.path.exists() else []

    def remove(self) -> None:
        """Remove it, and whatever interrupted runs of other settings left for the same record."""
        for file in self.path.parent.glob(f".{glob.escape(self._final_name)}.*.npz"):
            file.unlink(missing_ok=True)


def fingerprint(models: RecordedModels, prompts: Sequence[EncodedPrompt], settings: RecordSettings) -> str:
    """16 hexadecimal digits that change with anything a record depends on; of the weights a sample is read."""
    digest = hashlib.sha256(json.dumps([FORMAT, asdict(settings), [prompt._asdict() for prompt in prompts]]).encode())
    draft = None if models.draft is None else models.draft.config
    digest.update(f"{models.target_name} {models.drafter_name} {models.target.config} {draft}".encode())
    digest.update(f"{models.computed_by} {models.dtype} {computing_host(models.computed_by)}".encode())
    for drafters in (models.heads, models.finders):
        digest.update(json.dumps([(one.name, one.digest) for one in drafters]).encode())
    adapters = models.exits.adapters if models.exits is not None else {}
    drafts = () if models.draft is None else (models.draft,)
    for module in (models.target, *drafts, *(adapters[layer] for layer in sorted(adapters))):
        for name, weight in module.named_parameters():
            flat = weight.detach().flatten()
            places = torch.arange(_VALUES_PER_WEIGHT) * (len(flat) - 1) // (_VALUES_PER_WEIGHT - 1)
            digest.update(name.encode())
            digest.update(flat[places].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
