"""Train the streams of the target (`runtime.stream_model`) on its cached states.

The target's top layers are run again, frozen, for their keys; the streams of some answer positions then learn
the target's softmax at the positions they look ahead to (soft cross-entropy; the paper uses the text's tokens).
The target's own loss has no weight, because its weights are not trained: the paper's lossless mode.

Shapes: legend of `training.batch`, plus R rows per conversation that have streams, J streams of each, N pairs of
row and stream that have something to guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from runtime.decoder import Decoder
from runtime.static_tree import Ranks
from runtime.stream_folder import load_streams, save_streams
from runtime.stream_model import StreamConfig, StreamModel, keys_along, stream_mask
from runtime.stream_tree import StreamTree
from training.batch import make_batch
from training.distillation import cross_entropy_to_mean_rows, mean_rows
from training.judgement import Judgement, Progress
from training.recipe import StreamRecipe
from training.states import TargetStates
from training.static_tree import GROWN_ON, grow_tree, judge_heads

TOP_KS = (1, 3, 8)
_EVALUATION_BATCH = 8


class StreamRows(NamedTuple):
    """Rows that have streams, and what each stream has to guess."""

    positions: Tensor
    """Of the rows, [B, R]; conversations with fewer rows repeat one."""
    ahead: Tensor
    """The position whose softmax each stream learns, [B, R, J]."""
    has_target: Tensor
    """Whether that position predicts a token of the answer, and the row is no repetition, [B, R, J] bool."""


class StreamTask:
    """`training.trainer.Task` for a `StreamModel`; it trains where the target lies."""

    def __init__(self, recipe: StreamRecipe, target: Decoder, kept_ids: Tensor, states: TargetStates) -> None:
        self.recipe, self.states, self.target = recipe, states, target
        self.module = initial_streams(recipe, target).to(states.device)
        self.kept_ids = kept_ids.to(states.device)
        self._head_VD = target.head.weight[self.kept_ids].to(torch.bfloat16)
        self.num_conversations = len(states.conversations) - recipe.num_held_out

    def conversation_length(self, index: int) -> int:
        """Tokens of the conversation."""
        return len(self.states.conversations[index].ids)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Soft cross-entropy of every stream, farther ones weighing less; counts the rows that had streams."""
        rows = self._rows(batch, generator)
        hidden_BRJD, finals = self._run(batch, rows.positions), make_batch(self.states, batch)
        mean_MD = mean_rows(finals.final_MD, self._head_VD)
        place_BT = (finals.predicting.flatten().cumsum(0) - 1).view_as(finals.predicting)
        losses = []
        for stream in range(self.recipe.num_streams):
            chosen_BR = rows.has_target[:, :, stream]
            place_BR = place_BT.gather(1, rows.ahead[:, :, stream].clamp(max=place_BT.shape[1] - 1))
            student_ND = hidden_BRJD[:, :, stream][chosen_BR]
            losses.append(cross_entropy_to_mean_rows(student_ND, mean_MD[place_BR[chosen_BR]], self._head_VD))
        weights = torch.tensor([self.recipe.stream_decay**stream for stream in range(len(losses))])
        loss = (torch.stack(losses) * weights.to(losses[0].device)).sum() / weights.sum()
        return loss, int(rows.has_target[:, :, 0].sum())

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """Share of held-out positions where the target's token is among each stream's k best."""
        held_out = range(self.num_conversations, len(self.states.conversations))
        hits = torch.zeros(self.recipe.num_streams, len(TOP_KS))
        totals = torch.zeros(self.recipe.num_streams)
        for start in range(0, len(held_out), _EVALUATION_BATCH):
            batch = held_out[start : start + _EVALUATION_BATCH]
            rows, finals = self._rows(batch), make_batch(self.states, batch)
            wanted_BT = torch.full(finals.ids.shape, -1, device=finals.ids.device)
            wanted_BT[finals.predicting] = (finals.final_MD @ self._head_VD.T).argmax(-1)
            hidden_BRJD = self._run(batch, rows.positions)
            for stream in range(self.recipe.num_streams):
                chosen_BR = rows.has_target[:, :, stream]
                wanted_BR = wanted_BT.gather(1, rows.ahead[:, :, stream].clamp(max=wanted_BT.shape[1] - 1))
                logits_NV = hidden_BRJD[:, :, stream][chosen_BR].to(self._head_VD.dtype) @ self._head_VD.T
                found_NK = logits_NV.topk(max(TOP_KS)).indices == wanted_BR[chosen_BR][:, None]
                hits[stream] += torch.stack([found_NK[:, :top_k].any(-1).sum() for top_k in TOP_KS]).cpu()
                totals[stream] += len(found_NK)
        shares = (hits / totals[:, None].clamp(min=1)).tolist()
        return {
            f"agreement_stream{stream}_top{top_k}": share
            for stream, row in enumerate(shares, 1)
            for top_k, share in zip(TOP_KS, row, strict=True)
        }

    def finish(self, folder: Path, *, target_name: str, metadata: Mapping[str, Any], progress: Progress) -> Judgement:
        """Grow the tree on training answers, save, load again, and simulate rounds on the held-out greedy answers."""
        states, target = self.states, self.target
        growing = self._greedy(range(max(0, self.num_conversations - GROWN_ON), self.num_conversations))
        held_out = self._greedy(range(self.num_conversations, len(states.conversations)))
        total = len(growing) + len(held_out)
        model = deepcopy(self.module).to(target.embedding.weight.dtype).eval().requires_grad_(requires_grad=False)
        ranks = self._ranks(StreamTree(model, target, self.kept_ids, ()), growing, lambda done: progress(done, total))
        paths = grow_tree(np.concatenate(ranks), self.recipe.num_nodes)
        save_streams(
            self.module,
            paths,
            folder,
            kept_ids=self.kept_ids,
            target=target,
            target_name=target_name,
            metadata=metadata,
        )
        loaded = load_streams(folder, target)
        judged = self._ranks(loaded, held_out, lambda done: progress(len(growing) + done, total))
        return Judgement(acceptance=judge_heads(judged, loaded.paths, self.recipe.tree_sizes))

    def _greedy(self, indices: range) -> list[int]:
        return [index for index in indices if self.states.conversations[index].temperature == 0]

    def _ranks(self, tree: StreamTree, indices: Sequence[int], progress: Callable[[int], None]) -> list[Ranks]:
        """How the streams rank the tokens of the answers, [answer tokens, J] each."""
        ranks = []
        for done, index in enumerate(indices):
            progress(done)
            row, x_TD = self.states.conversations[index], self.states.rows(self.recipe.start_layer, index)
            ranks.append(tree.level_ranks(row.ids, start=len(row.prompt), x_TD=x_TD.to(self.states.device, tree.dtype)))
        return ranks

    def _rows(self, batch: Sequence[int], generator: torch.Generator | None = None) -> StreamRows:
        answers = [self.states.conversations[index] for index in batch]
        spans = [(len(row.prompt) - 1, len(row.ids) - 1) for row in answers]
        rows = choose_rows(spans, self.recipe.rows_per_conversation, self.recipe.num_streams, generator)
        return StreamRows(*(part.to(self.states.device) for part in rows))

    def _run(self, batch: Sequence[int], positions_BR: Tensor) -> Tensor:
        """Normalised hidden states of the streams of the given rows [B, R, J, D]."""
        x_BTD = _padded(self.states, batch, self.recipe.start_layer)
        keys = keys_along(self.target, x_BTD, self.recipe.start_layer)
        past_BRS = torch.arange(x_BTD.shape[1], device=x_BTD.device) <= positions_BR[..., None]
        visible_BRS = torch.zeros(past_BRS.shape, dtype=x_BTD.dtype, device=x_BTD.device)
        visible_BRS.masked_fill_(~past_BRS, float("-inf"))
        mask = stream_mask(visible_BRS[:, None], self.recipe.num_streams)
        rows_BRD = x_BTD.gather(1, positions_BR[..., None].expand(-1, -1, x_BTD.shape[-1]))
        with torch.autocast(x_BTD.device.type, dtype=torch.bfloat16):
            return self.module(rows_BRD, positions=positions_BR, mask=mask, keys=keys)  # type: ignore[no-any-return]


def initial_streams(recipe: StreamRecipe, target: Decoder) -> StreamModel:
    """Streams that start as copies of their row, with seeded low-rank changes that do nothing yet."""
    config = StreamConfig(num_streams=recipe.num_streams, start_layer=recipe.start_layer, rank=recipe.rank)
    streams = StreamModel(target, config)
    generator = torch.Generator().manual_seed(recipe.optimisation.seed)
    for name, weight in streams.trained.items():
        if name.endswith(".narrow.weight"):
            torch.nn.init.normal_(weight, std=target.config.hidden_size**-0.5, generator=generator)
    return streams


def choose_rows(
    spans: Sequence[tuple[int, int]], count: int, num_streams: int, generator: torch.Generator | None
) -> StreamRows:
    """Up to `count` rows of each conversation that look ahead to at least one of its own positions.

    Args:
        spans: the positions of each conversation that predict its answer: first, and one behind the last.
        count: rows at most.
        num_streams: positions that each row looks ahead.
        generator: of the random choice; None takes rows that are spread evenly.
    """
    chosen = [_some(first, stop - 1, count, generator) for first, stop in spans]
    width = max(1, *map(len, chosen))
    positions = torch.tensor(
        [[*row, *[first] * (width - len(row))] for row, (first, _) in zip(chosen, spans, strict=True)]
    )
    ahead = positions[..., None] + torch.arange(1, num_streams + 1)
    stops = torch.tensor([stop for _, stop in spans])
    is_row = torch.arange(width) < torch.tensor([len(row) for row in chosen])[:, None]
    has_target = (ahead < stops[:, None, None]) & is_row[..., None]
    return StreamRows(positions, ahead, has_target)


def _some(first: int, stop: int, count: int, generator: torch.Generator | None) -> list[int]:
    """At most `count` of the positions first..stop - 1, ascending."""
    total = stop - first
    if total <= count:
        return list(range(first, stop))
    if generator is None:
        return [first + place * total // count for place in range(count)]
    return (first + torch.randperm(total, generator=generator)[:count].sort().values).tolist()


def _padded(states: TargetStates, batch: Sequence[int], layer: int) -> Tensor:
    """States behind `layer`, zero-padded on the right, [B, T, D] bfloat16."""
    rows = [states.rows(layer, index) for index in batch]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(states.device)
