"""Train streams inside a draft that is trained already, to foresee the draft's own tokens.

The paper (arXiv 2402.11131) trains streams and draft together; here the draft is frozen, so that its tokens stay
the same, and so that streams can be trained in minutes whenever there is a better draft.
Exit features are dropped at random, as in `training.tasks.chain_draft`. Shapes: legend of
`training.tasks.streams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from decoding.errors import TrainingError
from decoding.progress import ReportCount
from runtime.drafters.language_model.folder import add_streams, load_draft
from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.shipped import find_drafter
from runtime.drafters.streams.model import run_along
from runtime.models.decoder import Decoder, causal_mask
from training.data.batch import make_batch, shifted_features
from training.data.states import TargetStates
from training.judging.card import read_card
from training.recipe import DraftStreamRecipe
from training.tasks.chain_draft import periodic_presence, random_presence
from training.tasks.states_task import Judgement, Metadata
from training.tasks.streams import StreamsTask, StreamTexts, start_streams, stream_config


class DraftStreamTask(StreamsTask[DraftStreamRecipe]):
    """Trains the streams of a draft."""

    def __init__(self, recipe: DraftStreamRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states)
        self.draft = _draft_of(recipe, self.target)
        self.module = self.draft.add_streams().to(states.device)
        start_streams(self.module, self.draft.decoder, recipe.optimisation.seed)
        self._head_VD = self.draft.decoder.lm_head.weight.to(torch.bfloat16)

    @classmethod
    def require_fit(cls, recipe: DraftStreamRecipe, target: Decoder) -> None:
        """The same, and a draft that can be loaded, has a card, and reads the features that the recipe names."""
        super().require_fit(recipe, target)
        _draft_of(recipe, target)

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:  # noqa: ARG002
        """Write the draft again, with its streams."""
        source = find_drafter(self.recipe.drafter)
        add_streams(source, self.module, folder, training=metadata)
        progress(1, 1)
        return Judgement(extends=source)

    @torch.no_grad()
    def texts(self, batch: Sequence[int], generator: torch.Generator | None) -> StreamTexts:
        """What the draft computes: with features dropped at random, or at every second position."""
        rows = make_batch(self.states, batch)
        if generator is None:
            present = periodic_presence(rows.ids.shape, 2)
        else:
            present = random_presence(rows.ids.shape, self.recipe.featureless_share, generator)
        features = shifted_features(self.states, batch, self.draft.config.exit_features, present)
        width, device = rows.ids.shape[1], rows.ids.device
        with torch.autocast(device.type, dtype=torch.bfloat16):
            x_BTD = self.draft.lower_half(
                rows.ids,
                positions=torch.arange(width, device=device),
                mask=causal_mask(width, torch.bfloat16).to(device),
                features_BTE=features,
            )
            final_BTD, keys = run_along(self.draft.decoder, x_BTD, self.draft.half_layer)
        final_MD = self.draft.decoder.normalise(final_BTD[rows.predicting])
        return StreamTexts(replace(rows, final_MD=final_MD), x_BTD, keys)


def _draft_of(recipe: DraftStreamRecipe, target: Decoder) -> DraftModel:
    """The draft in bfloat16, with the sizes of the streams that it has none of yet."""
    folder = find_drafter(recipe.drafter)
    read_card(folder)  # it is written again in the end: better to miss it now
    draft = load_draft(folder, target, dtype=torch.bfloat16)
    if draft.config.exit_features != recipe.exit_features:
        own, wanted = list(draft.config.exit_features), list(recipe.exit_features)
        msg = f"exit_features {wanted}: {recipe.drafter} reads the target's layers {own}"
        raise TrainingError(msg)
    draft.config = replace(draft.config, streams=stream_config(recipe))
    return draft
