"""Train streams inside a draft that is trained already, to foresee the draft's own tokens.

The paper (arXiv 2402.11131) trains streams and draft together; here the draft is frozen, so that what it says stays
what it was, and so that its streams can be trained anew in minutes whenever there is a better draft.
Exit features are dropped at random, as in `training.tasks.chain_draft`. Shapes: legend of
`training.tasks.stream_learning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoding.errors import TrainingError
from runtime.drafters.language_model.folder import add_streams, load_draft
from runtime.drafters.shipped import find_drafter
from runtime.drafters.streams.model import StreamModel, run_along
from runtime.models.decoder import Decoder, causal_mask
from training.data.batch import make_batch, shifted_features
from training.data.states import TargetStates
from training.judging.card import read_card
from training.judging.judgement import Judgement, Progress
from training.recipe import DraftStreamRecipe
from training.tasks.chain_draft import random_presence
from training.tasks.stream_learning import StreamLearner, StreamTexts, start_streams, stream_config

_EVALUATION_BATCH = 8


class DraftStreamTask:
    """`training.trainer.Task` for the streams of a draft; it trains where the target lies."""

    def __init__(self, recipe: DraftStreamRecipe, target: Decoder, kept_ids: Tensor, states: TargetStates) -> None:  # noqa: ARG002
        self.recipe, self.states = recipe, states
        folder = find_drafter(recipe.drafter)
        read_card(folder)  # it is written again in the end: better to miss it now
        draft = load_draft(folder, target, dtype=torch.bfloat16)
        if draft.config.exit_features != recipe.exit_features:
            own, wanted = list(draft.config.exit_features), list(recipe.exit_features)
            msg = f"exit_features {wanted}: {recipe.drafter} reads the target's layers {own}"
            raise TrainingError(msg)
        self.draft = draft
        self.draft.config = replace(draft.config, streams=stream_config(recipe))
        self.module: StreamModel = self.draft.add_streams().to(states.device)
        start_streams(self.module, self.draft.decoder, recipe.optimisation.seed)
        self._learner = StreamLearner(self.module, self.draft.decoder.lm_head.weight.to(torch.bfloat16), recipe)
        self.num_conversations = len(states.conversations) - recipe.num_held_out

    def conversation_length(self, index: int) -> int:
        """Tokens of the conversation."""
        return len(self.states.conversations[index].ids)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Soft cross-entropy of the streams; counts the rows that had some."""
        width = max(map(self.conversation_length, batch))
        present = random_presence(torch.Size((len(batch), width)), self.recipe.featureless_share, generator)
        return self._learner.loss(self._texts(batch, present), generator)

    def evaluate(self) -> Mapping[str, float]:
        """Held-out agreement of every stream with the draft, which has features at every second position."""
        held_out = range(self.num_conversations, len(self.states.conversations))
        starts = range(0, len(held_out), _EVALUATION_BATCH)
        return self._learner.agreement(self._alternating(held_out[at : at + _EVALUATION_BATCH]) for at in starts)

    def finish(self, folder: Path, *, target_name: str, metadata: Mapping[str, Any], progress: Progress) -> Judgement:  # noqa: ARG002
        """Write the draft again, with its streams."""
        source = find_drafter(self.recipe.drafter)
        add_streams(source, self.module, folder, training=metadata)
        progress(1, 1)
        return Judgement(extends=source)

    def _alternating(self, batch: Sequence[int]) -> StreamTexts:
        width = max(map(self.conversation_length, batch))
        present = torch.zeros(len(batch), width, dtype=torch.bool)
        present[:, ::2] = True
        return self._texts(batch, present)

    @torch.no_grad()
    def _texts(self, batch: Sequence[int], present: Tensor) -> StreamTexts:
        rows = make_batch(self.states, batch)
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
        return StreamTexts(x_BTD=x_BTD, keys=keys, predicting=rows.predicting, final_MD=final_MD)
