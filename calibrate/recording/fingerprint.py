"""What tells records apart: a number that follows models, prompts and settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from calibrate.prompts import EncodedPrompt
from calibrate.recording.recorded_models import RecordedModels
from decoding.recorded.record_checks import FORMAT
from hwprofiles.host import computing_host

if TYPE_CHECKING:
    from calibrate.recording.recorder import RecordSettings

_VALUES_PER_WEIGHT: Final = 16


def fingerprint(models: RecordedModels, prompts: Sequence[EncodedPrompt], settings: RecordSettings) -> str:
    """16 hexadecimal digits that change with anything a record depends on; of the weights a sample is read."""
    digest = hashlib.sha256(json.dumps([FORMAT, asdict(settings), [prompt._asdict() for prompt in prompts]]).encode())
    draft = None if models.draft is None else models.draft.config
    digest.update(f"{models.target_name} {models.drafter_name} {models.target.config} {draft}".encode())
    digest.update(f"{models.computed_by} {models.dtype} {computing_host(models.computed_by)}".encode())
    digest.update(json.dumps([(head.name, head.digest) for head in models.heads]).encode())
    digest.update(json.dumps([(finder.name, finder.digest) for finder in models.finders]).encode())
    adapters = models.exits.adapters if models.exits is not None else {}
    drafts = () if models.draft is None else (models.draft,)
    for module in (models.target, *drafts, *(adapters[layer] for layer in sorted(adapters))):
        for name, weight in module.named_parameters():
            digest.update(name.encode())
            digest.update(_sample(weight).numpy().tobytes())
    return digest.hexdigest()[:16]


def _sample(weight: nn.Parameter) -> Tensor:
    """A few evenly spread values, float32."""
    flat = weight.detach().flatten()
    places = torch.arange(_VALUES_PER_WEIGHT) * (len(flat) - 1) // (_VALUES_PER_WEIGHT - 1)
    return flat[places].float().cpu()
