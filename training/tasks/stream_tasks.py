"""Trains streams (`runtime.drafters.streams`) of the target, of a frozen draft, or together with a draft.

The streams of some positions learn the decoder's softmax at the positions that they look ahead to (in the paper: the
text's tokens). They attend to the decoder's keys and values in its top layers, which are computed again.

Shape legend: as in `training.data.batch`, plus R rows per conversation that have streams, J streams per row.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from decoding.errors import TrainingError
from decoding.progress import ReportCount
from decoding.tree_shape import Path as TreePath
from decoding.tree_shape import Ranks
from runtime.drafters.head_drafter import save_tree_heads
from runtime.drafters.language_model.folder import StreamConfig, add_streams, load_draft, save_draft
from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.registry import find_drafter
from runtime.drafters.streams import (
    Borrowed,
    Keys,
    StreamFolderConfig,
    StreamModel,
    StreamTree,
    load_streams,
    run_along,
    stream_mask,
)
from runtime.models.decoder import Decoder
from training.data.batch import Batch, cross_entropy_to_mean_rows, decayed_mean, make_batch, mean_rows, shifted_features
from training.data.states import TargetStates
from training.judging.card import read_card
from training.judging.drafter_acceptance import AgreementCount
from training.recipe import DraftStreamRecipe, StreamingDraftRecipe, StreamRecipe
from training.tasks.chain_draft import held_out_agreement, judge_folder, periodic_presence, random_presence
from training.tasks.states_task import Judgement, Metadata, StatesTask, TreeTask

R = TypeVar("R", bound=StreamRecipe | DraftStreamRecipe | StreamingDraftRecipe)


class StreamTexts(NamedTuple):
    """The decoder's states for a batch.

    Attributes:
        batch: with the decoder's normalised final states, which the streams learn to predict.
        x_BTD: states after the layer where streams begin.
        keys: keys and values of the layers above.
    """

    batch: Batch
    x_BTD: Tensor
    keys: Keys


class StreamRows(NamedTuple):
    """The rows that have streams, and what each stream learns.

    Attributes:
        positions: of the rows, [B, R]; a conversation with fewer rows repeats its first one.
        ahead: position whose softmax each stream learns, [B, R, J]; limited to the end of the text.
        has_target: whether `ahead` predicts a token of the answer, and the row is no repetition, [B, R, J].
    """

    positions: Tensor
    ahead: Tensor
    has_target: Tensor


class StreamsTask(StatesTask[R]):
    """Trains the streams of a decoder."""

    streams: StreamModel
    """The streams: the trained module, or a part of it."""

    @abstractmethod
    def texts(self, batch: Sequence[int], generator: torch.Generator | None) -> StreamTexts:
        """Return the decoder's states for a batch; without a generator nothing is random."""

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Return the weighted mean of the streams' soft cross-entropies, and the number of rows with streams."""
        return self.stream_loss(self.texts(batch, generator), generator)

    def stream_loss(self, texts: StreamTexts, generator: torch.Generator) -> tuple[Tensor, int]:
        """Return the mean of the streams' losses (farther ones weigh less), and the number of rows with streams."""
        rows, hidden_BRJD = self._run(texts, generator)
        mean_MD = mean_rows(texts.batch.final_MD, self.head_VD)
        predicting = texts.batch.predicting
        place_BT = (predicting.flatten().cumsum(0) - 1).view_as(predicting)
        losses = []
        for stream, chosen_BR in enumerate(rows.has_target.unbind(-1)):
            places_N = place_BT.gather(1, rows.ahead[:, :, stream])[chosen_BR]
            student_ND = hidden_BRJD[:, :, stream][chosen_BR]
            losses.append(cross_entropy_to_mean_rows(student_ND, mean_MD[places_N], self.head_VD))
        return decayed_mean(losses, self.recipe.stream_decay), int(rows.has_target[:, :, 0].sum())

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """Return the share of held-out positions where the decoder's token is among the k best of each stream."""
        count, head_VD = AgreementCount(), self.head_VD
        for batch in self.held_out_batches():
            texts = self.texts(batch, None)
            rows, hidden_BRJD = self._run(texts, None)
            wanted_BT = torch.full(texts.batch.predicting.shape, -1, device=self.states.device)
            wanted_BT[texts.batch.predicting] = (texts.batch.final_MD.to(head_VD.dtype) @ head_VD.T).argmax(-1)
            for stream, chosen_BR in enumerate(rows.has_target.unbind(-1)):
                wanted_N = wanted_BT.gather(1, rows.ahead[:, :, stream])[chosen_BR]
                logits_NV = hidden_BRJD[:, :, stream][chosen_BR].to(head_VD.dtype) @ head_VD.T
                count.add(stream + 1, logits_NV, wanted_N)
        return count.figures("agreement_stream")

    def _run(self, texts: StreamTexts, generator: torch.Generator | None) -> tuple[StreamRows, Tensor]:
        """Choose rows and run their streams; return the rows, and the streams' normalised states [B, R, J, D]."""
        x_BTD, sizes = texts.x_BTD, self.recipe
        rows = choose_rows(texts.batch.predicting.cpu(), sizes.rows_per_conversation, sizes.num_streams, generator)
        rows = StreamRows(*(part.to(x_BTD.device) for part in rows))
        past_BRS = torch.arange(x_BTD.shape[1], device=x_BTD.device) <= rows.positions[..., None]
        visible_BRS = torch.zeros(past_BRS.shape, dtype=x_BTD.dtype, device=x_BTD.device)
        visible_BRS.masked_fill_(~past_BRS, float("-inf"))
        with torch.autocast(x_BTD.device.type, dtype=torch.bfloat16):
            hidden_BRJD = self.streams(
                x_BTD.gather(1, rows.positions[..., None].expand(-1, -1, x_BTD.shape[-1])),
                positions=rows.positions,
                cache=Borrowed(texts.keys),
                mask=stream_mask(visible_BRS[:, None], sizes.num_streams),
            )
        return rows, hidden_BRJD


class StreamTask(StreamsTask[StreamRecipe], TreeTask[StreamRecipe]):
    """Trains the target's streams."""

    module: StreamModel
    grows_on_greedy = True

    def __init__(self, recipe: StreamRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states)
        self.streams = self.module = new_streams(self.target, recipe).to(states.device)

    @classmethod
    def require_fit(cls, recipe: StreamRecipe, target: Decoder) -> None:
        """Raise `TrainingError` also for a recipe that leaves no layer for streams to run in."""
        super().require_fit(recipe, target)
        if recipe.start_layer == target.config.num_layers:
            raise TrainingError(f"start_layer {recipe.start_layer}: the target has no layer after it")

    def drafter_without_tree(self) -> StreamTree:
        """See `TreeTask`."""
        model = deepcopy(self.module).to(self.target.embedding.weight.dtype).eval()
        return StreamTree(model.requires_grad_(requires_grad=False), self.target, self.kept_ids, ())

    def save_and_load(self, paths: Sequence[TreePath], folder: Path, **origin: Any) -> StreamTree:
        """See `TreeTask`."""
        save_tree_heads(StreamFolderConfig, self.module, paths, folder, kept_ids=self.kept_ids, **origin)
        return load_streams(folder, self.target)

    def ranks(self, drafter: StreamTree, index: int) -> Ranks:
        """See `TreeTask`."""
        row, x_TD = self.states.conversations[index], self.states.rows(self.recipe.start_layer, index)
        features_TE = x_TD.to(self.states.device, drafter.dtype)
        return drafter.level_ranks(row.ids, start=len(row.prompt), features_TE=features_TE)

    @torch.no_grad()
    def texts(self, batch: Sequence[int], generator: torch.Generator | None) -> StreamTexts:  # noqa: ARG002
        """Return the target's states, computed from its cached ones."""
        start = self.recipe.start_layer
        x_BTD = self.states.padded(start, batch).to(self.target.embedding.weight.dtype)
        with torch.autocast(x_BTD.device.type, dtype=torch.bfloat16):
            _, keys = run_along(self.target, x_BTD, start)
        return StreamTexts(make_batch(self.states, batch), x_BTD, keys)


def new_streams(decoder: Decoder, recipe: StreamRecipe | DraftStreamRecipe | StreamingDraftRecipe) -> StreamModel:
    """Return streams with random (seeded) narrow weights; all others are zero, so that they change nothing yet."""
    streams = StreamModel(decoder, StreamConfig.model_validate(recipe))
    generator = torch.Generator().manual_seed(recipe.optimisation.seed)
    for name, weight in streams.trained.items():
        if name.endswith(".narrow.weight"):
            torch.nn.init.normal_(weight, std=decoder.config.hidden_size**-0.5, generator=generator)
    return streams


def choose_rows(predicting: Tensor, count: int, num_streams: int, generator: torch.Generator | None) -> StreamRows:
    """Choose up to `count` rows of each conversation's `predicting` positions [B, T]; evenly without generator."""
    firsts = predicting.int().argmax(-1)
    stops = firsts + predicting.sum(-1)
    spans = list(zip(firsts.tolist(), stops.tolist(), strict=True))
    chosen = [_some(first, stop - 1, count, generator) for first, stop in spans]
    width = max(1, *map(len, chosen))
    padded = [[*row, *[first] * (width - len(row))] for row, (first, _) in zip(chosen, spans, strict=True)]
    positions = torch.tensor(padded)
    ahead = positions[..., None] + torch.arange(1, num_streams + 1)
    is_row = torch.arange(width) < torch.tensor([[len(row)] for row in chosen])
    has_target = (ahead < stops[:, None, None]) & is_row[..., None]
    return StreamRows(positions, ahead.clamp(max=predicting.shape[1] - 1), has_target)


def _some(first: int, stop: int, count: int, generator: torch.Generator | None) -> Sequence[int]:
    total = stop - first
    if total <= count:
        return range(first, stop)
    if generator is None:
        return [first + place * total // count for place in range(count)]
    places: list[int] = torch.randperm(total, generator=generator)[:count].sort().values.tolist()
    return [first + place for place in places]


D = TypeVar("D", bound=DraftStreamRecipe | StreamingDraftRecipe)


class _StreamsOfDraftTask(StreamsTask[D]):
    """Trains streams of a draft to predict the draft's tokens."""

    def __init__(self, recipe: D, kept_ids: Tensor, states: TargetStates, dtype: torch.dtype) -> None:
        super().__init__(recipe, kept_ids, states)
        self.draft = _draft_of(recipe, self.target, dtype)
        self.streams = new_streams(self.draft.decoder, recipe).to(states.device)
        self.head_VD = self.draft.decoder.lm_head.weight.to(torch.bfloat16)

    @classmethod
    def require_fit(cls, recipe: D, target: Decoder) -> None:
        """Raise also if the draft cannot be loaded, has no card, or reads other features than the recipe says."""
        super().require_fit(recipe, target)
        _draft_of(recipe, target, torch.bfloat16)

    def texts(self, batch: Sequence[int], generator: torch.Generator | None) -> StreamTexts:
        """Return the draft's states, with features dropped at random; without generator, at every second position."""
        return self._texts(make_batch(self.states, batch), batch, generator)

    def _texts(self, rows: Batch, batch: Sequence[int], generator: torch.Generator | None) -> StreamTexts:
        if generator is None:
            present = periodic_presence(rows.ids.shape, 2)
        else:
            present = random_presence(rows.ids.shape, self.recipe.featureless_share, generator)
        features = shifted_features(self.states, batch, self.draft.config.exit_features, present)
        with torch.autocast(rows.ids.device.type, dtype=torch.bfloat16):
            where, half = {"positions": rows.positions, "mask": rows.mask}, self.draft.half_layer
            added_BTD = None if features is None else self.draft.fused(features)
            x_BTD = self.draft.lower_half(rows.ids, half, added_BTD=added_BTD, **where)
            final_BTD, keys = run_along(self.draft.decoder, x_BTD, half)
        final_MD = self.draft.decoder.normalise(final_BTD[rows.predicting])
        return StreamTexts(replace(rows, final_MD=final_MD), x_BTD, keys)


class DraftStreamTask(_StreamsOfDraftTask[DraftStreamRecipe]):
    """Trains streams inside a frozen draft."""

    def __init__(self, recipe: DraftStreamRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states, torch.bfloat16)
        self.module = self.streams

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:  # noqa: ARG002
        """Write the draft together with its streams."""
        source = find_drafter(self.recipe.drafter)
        add_streams(source, self.streams, folder, training=metadata)
        progress(1, 1)
        return Judgement(extends=source)


class StreamingDraftTask(_StreamsOfDraftTask[StreamingDraftRecipe]):
    """Trains a draft on the target's softmax, together with streams inside it on the draft's softmax."""

    def __init__(self, recipe: StreamingDraftRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states, torch.float32)
        self.draft.requires_grad_(requires_grad=True)
        for rows in (self.draft.decoder.embedding, self.draft.decoder.lm_head):
            rows.requires_grad_(requires_grad=False)
        self.module = nn.ModuleDict({"draft": self.draft, "streams": self.streams})

    def rate_share(self, name: str) -> float:
        """Return a smaller factor for the draft, which is trained already, than for its new streams."""
        return self.recipe.draft_rate_share if name.startswith("draft.") else 1.0

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Return the draft's cross-entropy to the target plus its streams' weighted loss, and the answer tokens."""
        rows = make_batch(self.states, batch)
        texts = self._texts(rows, batch, generator)
        mean_MD = mean_rows(rows.final_MD, self.head_VD)
        own = cross_entropy_to_mean_rows(texts.batch.final_MD, mean_MD, self.head_VD)
        of_streams, _ = self.stream_loss(texts, generator)
        return own + self.recipe.stream_weight * of_streams, len(rows.final_MD)

    def evaluate(self) -> Mapping[str, float]:
        """Return the draft's agreement with the target, and its streams' agreement with the draft."""
        return {**held_out_agreement(self, self.draft), **super().evaluate()}

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Save and reload the draft with its streams, and judge the draft on held-out greedy answers."""
        save_draft(self.draft, folder, target_name=target_name, metadata=metadata)
        add_streams(folder, self.streams, folder, training={"trained": "together with the draft"})
        return judge_folder(self, folder, self.recipe.windows, progress)


def _draft_of(recipe: DraftStreamRecipe | StreamingDraftRecipe, target: Decoder, dtype: torch.dtype) -> DraftModel:
    """Return the recipe's draft without streams, configured for the streams to train."""
    folder = find_drafter(recipe.drafter)
    read_card(folder)  # the end of the run needs the card: fail now if it is missing
    draft = load_draft(folder, target, dtype=dtype)
    if draft.config.exit_features != recipe.exit_features:
        own, wanted = list(draft.config.exit_features), list(recipe.exit_features)
        raise TrainingError(f"exit_features {wanted}: {recipe.drafter} reads the target's layers {own}")
    draft.streams, draft.config = None, replace(draft.config, streams=StreamConfig.model_validate(recipe))
    return draft
