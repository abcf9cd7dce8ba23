"""Train streams inside a draft: of a draft that stays what it is, or together with it (arXiv 2402.11131)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from decoding.errors import TrainingError
from decoding.progress import ReportCount
from runtime.drafters.language_model.folder import add_streams, load_draft, save_draft
from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.shipped import find_drafter
from runtime.drafters.streams import run_along
from runtime.models.decoder import Decoder
from training.data.batch import Batch, cross_entropy_to_mean_rows, make_batch, mean_rows, shifted_features
from training.data.states import TargetStates
from training.judging.card import read_card
from training.recipe import DraftStreamRecipe, StreamingDraftRecipe
from training.tasks.chain_draft import held_out_agreement, judge_folder, periodic_presence, random_presence
from training.tasks.states_task import Judgement, Metadata
from training.tasks.stream_tasks import StreamsTask, StreamTexts, new_streams, stream_config

D = TypeVar("D", bound=DraftStreamRecipe | StreamingDraftRecipe)


class _StreamsOfDraftTask(StreamsTask[D]):
    """Trains streams of a draft, to foresee the draft's own tokens."""

    def __init__(self, recipe: D, kept_ids: Tensor, states: TargetStates, dtype: torch.dtype) -> None:
        super().__init__(recipe, kept_ids, states)
        self.draft = _draft_of(recipe, self.target, dtype)
        self.streams = new_streams(self.draft.decoder, recipe).to(states.device)
        self.head_VD = self.draft.decoder.lm_head.weight.to(torch.bfloat16)

    @classmethod
    def require_fit(cls, recipe: D, target: Decoder) -> None:
        """Refuse also a recipe whose draft cannot be loaded, has no card, or reads other features."""
        super().require_fit(recipe, target)
        _draft_of(recipe, target, torch.bfloat16)

    def texts(self, batch: Sequence[int], generator: torch.Generator | None) -> StreamTexts:
        """Return the draft's states, with features dropped at random or at every second position."""
        return self._texts(make_batch(self.states, batch), batch, generator)

    def _texts(self, rows: Batch, batch: Sequence[int], generator: torch.Generator | None) -> StreamTexts:
        if generator is None:
            present = periodic_presence(rows.ids.shape, 2)
        else:
            present = random_presence(rows.ids.shape, self.recipe.featureless_share, generator)
        features = shifted_features(self.states, batch, self.draft.config.exit_features, present)
        with torch.autocast(rows.ids.device.type, dtype=torch.bfloat16):
            x_BTD = self.draft.lower_half(rows.ids, positions=rows.positions, mask=rows.mask, features_BTE=features)
            final_BTD, keys = run_along(self.draft.decoder, x_BTD, self.draft.half_layer)
        final_MD = self.draft.decoder.normalise(final_BTD[rows.predicting])
        return StreamTexts(replace(rows, final_MD=final_MD), x_BTD, keys)


class DraftStreamTask(_StreamsOfDraftTask[DraftStreamRecipe]):
    """Trains streams inside a draft that is trained already, and frozen."""

    def __init__(self, recipe: DraftStreamRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states, torch.bfloat16)
        self.module = self.streams

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:  # noqa: ARG002
        """Write the draft again, with its streams."""
        source = find_drafter(self.recipe.drafter)
        add_streams(source, self.streams, folder, training=metadata)
        progress(1, 1)
        return Judgement(extends=source)


class StreamingDraftTask(_StreamsOfDraftTask[StreamingDraftRecipe]):
    """Trains a draft on the target's softmax, and streams inside it on the draft's, together."""

    def __init__(self, recipe: StreamingDraftRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states, torch.float32)
        self.draft.requires_grad_(requires_grad=True)
        for rows in (self.draft.decoder.embedding, self.draft.decoder.lm_head):
            rows.requires_grad_(requires_grad=False)
        self.module = nn.ModuleDict({"draft": self.draft, "streams": self.streams})

    def rate_share(self, name: str) -> float:
        """Streams begin with nothing, the draft with what it was trained to."""
        return self.recipe.draft_rate_share if name.startswith("draft.") else 1.0

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """The draft's cross-entropy to the target, and that of the streams by their weight; counts answer tokens."""
        rows = make_batch(self.states, batch)
        texts = self._texts(rows, batch, generator)
        mean_MD = mean_rows(rows.final_MD, self.head_VD)
        own = cross_entropy_to_mean_rows(texts.batch.final_MD, mean_MD, self.head_VD)
        of_streams, _ = self.stream_loss(texts, generator)
        return own + self.recipe.stream_weight * of_streams, len(rows.final_MD)

    def evaluate(self) -> Mapping[str, float]:
        """Return how often the draft names the target's token, and its streams the draft's."""
        return {**held_out_agreement(self, self.draft), **super().evaluate()}

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Save the draft with its streams, load it again, and simulate rounds on the held-out greedy answers."""
        save_draft(self.draft, folder, target_name=target_name, metadata=metadata)
        add_streams(folder, self.streams, folder, training={"trained": "together with the draft"})
        return judge_folder(self, folder, self.recipe.windows, progress)


def _draft_of(recipe: DraftStreamRecipe | StreamingDraftRecipe, target: Decoder, dtype: torch.dtype) -> DraftModel:
    """The draft, with the sizes of the streams that it has none of yet."""
    folder = find_drafter(recipe.drafter)
    read_card(folder)  # it is written again in the end: better to miss it now
    draft = load_draft(folder, target, dtype=dtype)
    if draft.config.exit_features != recipe.exit_features:
        own, wanted = list(draft.config.exit_features), list(recipe.exit_features)
        raise TrainingError(f"exit_features {wanted}: {recipe.drafter} reads the target's layers {own}")
    draft.streams, draft.config = None, replace(draft.config, streams=stream_config(recipe))
    return draft
