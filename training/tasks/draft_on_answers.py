"""How well a draft model says what the target says: at every held-out position, and round by round once it is saved.

Shapes: legend of `training.data.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoding.progress import ReportCount
from runtime.drafters.language_model.folder import load_draft
from runtime.drafters.language_model.model import DraftModel
from training.data.batch import Batch, exit_features, make_batch, shifted_features
from training.judging.drafter_acceptance import Acceptance, judge_draft
from training.tasks.states_task import Judgement, StatesTask


def answer_logits(draft: DraftModel, rows: Batch, features_BTE: Tensor | None) -> Tensor:
    """The draft's logits at the answer positions of a batch, [M, V]."""
    with torch.autocast(rows.ids.device.type, dtype=torch.bfloat16):
        x_BTD = draft(rows.ids, positions=rows.positions, mask=rows.mask, features_BTE=features_BTE)
        return draft.decoder.lm_head(x_BTD[rows.predicting])  # type: ignore[no-any-return]


@torch.no_grad()
def held_out_agreement(task: StatesTask[Any], draft: DraftModel) -> Mapping[str, float]:
    """Held-out top-1 agreement with the target: without features, with all, with every second."""
    layers, head_VD = draft.config.exit_features, draft.decoder.lm_head.weight.to(torch.bfloat16)
    patterns = {"agreement_without_features": 0}
    if layers:
        patterns |= {"agreement_with_features": 1, "agreement_alternating_features": 2}
    hits = dict.fromkeys(patterns, 0)
    total = 0
    for batch in task.held_out_batches():
        rows = make_batch(task.states, batch)
        wanted = (rows.final_MD @ head_VD.T).argmax(-1)
        total += len(wanted)
        for name, period in patterns.items():
            present = periodic_presence(rows.ids.shape, period)
            logits = answer_logits(draft, rows, shifted_features(task.states, batch, layers, present))
            hits[name] += int((logits.argmax(-1) == wanted).sum())
    return {name: count / total for name, count in hits.items()}


def judge_folder(task: StatesTask[Any], folder: Path, windows: Sequence[int], progress: ReportCount) -> Judgement:
    """Load a saved draft, and simulate rounds on the held-out greedy answers."""
    states = task.states
    draft = load_draft(folder, states.target, dtype=torch.float32)
    layers, greedy = draft.config.exit_features, task.greedy(task.held_out)
    sources = [None, lambda index: exit_features(states, [index], layers)[0]] if layers else [None]
    results: list[Acceptance] = []
    for done, source in enumerate(sources):
        progress(done, len(sources))
        results += judge_draft(draft, states.conversations, greedy, windows=windows, features=source)
    return Judgement(acceptance=tuple(results) if greedy else ())


def periodic_presence(shape: torch.Size, period: int) -> Tensor:
    """Every `period`-th position with features; none at all for 0."""
    present = torch.zeros(shape, dtype=torch.bool)
    if period:
        present[:, ::period] = True
    return present
