"""Distil a draft language model on the target's own text.

The loss is the cross-entropy to the target's softmax over the kept vocabulary, at answer positions. Exit
features are dropped in random runs, because drafted positions have none when the draft is used.
Shapes: legend of `training.data.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from decoding.progress import ReportCount
from runtime.drafters.language_model.draft_passes import DraftConfig
from runtime.drafters.language_model.folder import save_draft
from runtime.drafters.language_model.model import DraftModel
from runtime.models.decoder import Decoder
from training.data.batch import make_batch, shifted_features, soft_cross_entropy
from training.data.states import TargetStates
from training.recipe import DraftRecipe
from training.tasks.draft_on_answers import answer_logits, held_out_agreement, judge_folder
from training.tasks.states_task import Judgement, Metadata, StatesTask

_LONGEST_RUN_WITHOUT = 4
_LONGEST_RUN_WITH = 16


class DraftTask(StatesTask[DraftRecipe]):
    """Trains a `DraftModel`."""

    module: DraftModel

    def __init__(self, recipe: DraftRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states)
        self.module = initial_draft(recipe, self.target, kept_ids).to(states.device)
        self._head_VD = self.module.decoder.lm_head.weight.to(torch.bfloat16)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Soft cross-entropy at the answer positions, features dropped at random."""
        rows = make_batch(self.states, batch)
        present = random_presence(rows.ids.shape, self.recipe.featureless_share, generator)
        features = shifted_features(self.states, batch, self.recipe.exit_features, present)
        student = answer_logits(self.module, rows, features)
        return soft_cross_entropy(student, rows.final_MD @ self._head_VD.T), len(rows.final_MD)

    def evaluate(self) -> Mapping[str, float]:
        """Held-out top-1 agreement with the target."""
        return held_out_agreement(self, self.module)

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Save the draft, load it again, and simulate rounds on the held-out greedy answers."""
        save_draft(self.module, folder, target_name=target_name, metadata=metadata)
        return judge_folder(self, folder, self.recipe.windows, progress)


def initial_draft(recipe: DraftRecipe, target: Decoder, kept_ids: Tensor) -> DraftModel:
    """A draft in float32 whose layers are copies of the target's; the features' weight starts at zero."""
    config = DraftConfig(
        source_layers=recipe.source_layers,
        vocab_size=recipe.vocab_size,
        exit_features=recipe.exit_features,
        feature_layer=recipe.feature_layer,
    )
    draft = DraftModel(target.config, config)
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
    """Alternating runs of 1-16 positions with features and 1-4 without; some conversations have none at all.

    When the draft is used, committed text has features everywhere and only the tokens of one window have none.
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
