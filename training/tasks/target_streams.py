"""Train the streams of the target (`runtime.drafters.streams.model`) on its cached states.

The target's top layers are run again, frozen, for their keys. How streams learn: `training.tasks.stream_learning`.
Shapes: legend of `training.tasks.stream_learning`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.drafters.streams.drafter import StreamTree
from runtime.drafters.streams.folder import load_streams, save_streams
from runtime.drafters.streams.model import StreamModel, run_along
from runtime.models.decoder import Decoder
from runtime.trees.static_tree import Ranks
from training.data.batch import make_batch
from training.data.states import TargetStates
from training.judging.judgement import Judgement, Progress
from training.recipe import StreamRecipe
from training.tasks.stream_learning import StreamLearner, StreamTexts, start_streams, stream_config
from training.tasks.tree_growth import GROWN_ON, grow_tree, judge_heads

_EVALUATION_BATCH = 8


class StreamTask:
    """`training.trainer.Task` for the target's streams; it trains where the target lies."""

    def __init__(self, recipe: StreamRecipe, target: Decoder, kept_ids: Tensor, states: TargetStates) -> None:
        self.recipe, self.states, self.target = recipe, states, target
        self.module = StreamModel(target, stream_config(recipe)).to(states.device)
        start_streams(self.module, target, recipe.optimisation.seed)
        self.kept_ids = kept_ids.to(states.device)
        self._learner = StreamLearner(self.module, target.lm_head.weight[self.kept_ids].to(torch.bfloat16), recipe)
        self.num_conversations = len(states.conversations) - recipe.num_held_out

    def conversation_length(self, index: int) -> int:
        """Tokens of the conversation."""
        return len(self.states.conversations[index].ids)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Soft cross-entropy of the streams; counts the rows that had some."""
        return self._learner.loss(self._texts(batch), generator)

    def evaluate(self) -> Mapping[str, float]:
        """Held-out agreement of every stream with the target."""
        held_out = range(self.num_conversations, len(self.states.conversations))
        starts = range(0, len(held_out), _EVALUATION_BATCH)
        return self._learner.agreement(self._texts(held_out[at : at + _EVALUATION_BATCH]) for at in starts)

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
            x_TD = x_TD.to(self.states.device, tree.dtype)
            ranks.append(tree.level_ranks(row.ids, start=len(row.prompt), x_TD=x_TD))
        return ranks

    @torch.no_grad()
    def _texts(self, batch: Sequence[int]) -> StreamTexts:
        start, rows = self.recipe.start_layer, make_batch(self.states, batch)
        parts = [self.states.rows(start, index) for index in batch]
        x_BTD = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        x_BTD = x_BTD.to(self.states.device, self.target.embedding.weight.dtype)
        with torch.autocast(x_BTD.device.type, dtype=torch.bfloat16):
            _, keys = run_along(self.target, x_BTD, start)
        return StreamTexts(x_BTD=x_BTD, keys=keys, predicting=rows.predicting, final_MD=rows.final_MD)
