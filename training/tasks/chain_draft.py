"""Distils a draft language model on the target's text.

The loss is the cross-entropy to the target's softmax over the kept vocabulary, at answer positions. Exit features are
dropped in random runs of positions, because drafted positions have none. Shape legend: as in `training.data.batch`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoding.progress import ReportCount
from runtime.drafters.language_model.draft_passes import DraftConfig
from runtime.drafters.language_model.folder import load_draft, save_draft
from runtime.drafters.language_model.model import DraftModel
from runtime.models.decoder import Decoder
from training.data.batch import Batch, exit_features, make_batch, shifted_features, soft_cross_entropy
from training.data.states import TargetStates
from training.judging.drafter_acceptance import HeldOutAcceptance, judge_draft
from training.recipe import DraftRecipe
from training.tasks.states_task import Judgement, Metadata, StatesTask

_LONGEST_RUN_WITHOUT = 4
_LONGEST_RUN_WITH = 16


class DraftTask(StatesTask[DraftRecipe]):
    """Trains a `DraftModel`."""

    module: DraftModel

    def __init__(self, recipe: DraftRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states)
        self.module = initial_draft(recipe, self.target, kept_ids).to(states.device)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Return the soft cross-entropy at the answer positions, with features dropped at random."""
        rows = make_batch(self.states, batch)
        present = random_presence(rows.ids.shape, self.recipe.featureless_share, generator)
        features = shifted_features(self.states, batch, self.recipe.exit_features, present)
        student = answer_logits(self.module, rows, features)
        return soft_cross_entropy(student, rows.final_MD @ self.head_VD.T), len(rows.final_MD)

    def evaluate(self) -> Mapping[str, float]:
        """Return the held-out top-1 agreement with the target."""
        return held_out_agreement(self, self.module)

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Save and reload the draft, and judge it on held-out greedy answers."""
        save_draft(self.module, folder, target_name=target_name, metadata=metadata)
        return judge_folder(self, folder, self.recipe.windows, progress)


def initial_draft(recipe: DraftRecipe, target: Decoder, kept_ids: Tensor) -> DraftModel:
    """Return a float32 draft whose layers are copies of the target's; the weights that read features are zero."""
    sizes = recipe.model_dump(include={"source_layers", "vocab_size", "exit_features", "feature_layer"})
    draft = DraftModel(target.config, DraftConfig(**sizes))
    for own, source in zip(draft.decoder.layers, recipe.source_layers, strict=True):
        own.load_state_dict(target.layers[source - 1].state_dict())
    with torch.no_grad():
        draft.decoder.final_norm.copy_(target.final_norm)
    if draft.fuse is not None:
        nn.init.zeros_(draft.fuse.weight)
    draft.share(target, kept_ids)
    for rows in (draft.decoder.embedding, draft.decoder.lm_head):
        rows.weight = nn.Parameter(rows.weight.float(), requires_grad=False)
    return draft


def random_presence(shape: torch.Size, featureless_share: float, generator: torch.Generator) -> Tensor:
    """Return a random mask of positions with features: runs of 1-16 with, then 1-4 without (like drafted windows).

    A share `featureless_share` of the rows has no features at all.
    """
    num_rows, width = shape
    present = torch.zeros(num_rows, width, dtype=torch.bool)
    for row in range(num_rows):
        if float(torch.rand((), generator=generator)) < featureless_share:
            continue
        runs = torch.stack(
            [
                torch.randint(1, _LONGEST_RUN_WITH + 1, (width,), generator=generator),
                torch.randint(1, _LONGEST_RUN_WITHOUT + 1, (width,), generator=generator),
            ],
            dim=1,
        ).flatten()
        present[row] = (torch.arange(2 * width) % 2 == 0).repeat_interleave(runs)[:width]
    return present


def answer_logits(draft: DraftModel, rows: Batch, features_BTE: Tensor | None) -> Tensor:
    """Return the draft's logits at the answer positions of a batch, [M, V]."""
    with torch.autocast(rows.ids.device.type, dtype=torch.bfloat16):
        added_BTD = None if features_BTE is None else draft.fused(features_BTE)
        states = draft.run(rows.ids, positions=rows.positions, mask=rows.mask, added_BTD=added_BTD)
        return draft.decoder.lm_head(states.hidden_TD[rows.predicting])  # type: ignore[no-any-return]


@torch.no_grad()
def held_out_agreement(task: StatesTask[Any], draft: DraftModel) -> Mapping[str, float]:
    """Return the held-out top-1 agreement with the target: without features, with all, and with every second one."""
    layers = draft.config.exit_features
    patterns = {"agreement_without_features": 0}
    if layers:
        patterns |= {"agreement_with_features": 1, "agreement_alternating_features": 2}
    hits = dict.fromkeys(patterns, 0)
    total = 0
    for batch in task.held_out_batches():
        rows = make_batch(task.states, batch)
        wanted = (rows.final_MD @ task.head_VD.T).argmax(-1)
        total += len(wanted)
        for name, period in patterns.items():
            present = periodic_presence(rows.ids.shape, period)
            logits = answer_logits(draft, rows, shifted_features(task.states, batch, layers, present))
            hits[name] += int((logits.argmax(-1) == wanted).sum())
    return {name: count / total for name, count in hits.items()}


def judge_folder(task: StatesTask[Any], folder: Path, windows: Sequence[int], progress: ReportCount) -> Judgement:
    """Load a saved draft and judge it on held-out greedy answers, without features and (if it reads any) with them."""
    states = task.states
    draft = load_draft(folder, states.target, dtype=torch.float32)
    layers, greedy = draft.config.exit_features, task.greedy(task.held_out)
    sources = [None, lambda index: exit_features(states, [index], layers)[0]] if layers else [None]
    results: list[HeldOutAcceptance] = []
    for done, source in enumerate(sources):
        progress(done, len(sources))
        results += judge_draft(draft, states.conversations, greedy, windows=windows, features=source)
    return Judgement(acceptance=tuple(results) if greedy else ())


def periodic_presence(shape: torch.Size, period: int) -> Tensor:
    """Return a mask in which every `period`-th position has features; none has if `period` is 0."""
    present = torch.zeros(shape, dtype=torch.bool)
    if period:
        present[:, ::period] = True
    return present
