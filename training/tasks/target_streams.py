"""Train the streams of the target (`runtime.drafters.streams.model`) on its cached states.

The target's top layers are run again, frozen, for their keys. How streams learn: `training.tasks.stream_learning`.
Shapes: legend of `training.tasks.stream_learning`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from decoding.errors import TrainingError
from decoding.progress import ReportCount
from runtime.drafters.streams.drafter import StreamTree
from runtime.drafters.streams.folder import load_streams, save_streams
from runtime.drafters.streams.model import StreamModel, run_along
from runtime.models.decoder import Decoder
from runtime.trees.static_tree import Ranks
from training.data.batch import make_batch
from training.data.states import TargetStates
from training.judging.judgement import Judgement
from training.recipe import StreamRecipe
from training.tasks.states_task import Metadata, StatesTask
from training.tasks.stream_learning import StreamLearner, StreamTexts, start_streams, stream_config
from training.tasks.tree_growth import TreeAnswers, grown_on


class StreamTask(StatesTask[StreamRecipe]):
    """Trains the target's streams."""

    module: StreamModel

    def __init__(self, recipe: StreamRecipe, target: Decoder, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, target, kept_ids, states)
        self.module = StreamModel(target, stream_config(recipe)).to(states.device)
        start_streams(self.module, target, recipe.optimisation.seed)
        self._learner = StreamLearner(self.module, target.lm_head.weight[self.kept_ids].to(torch.bfloat16), recipe)

    @classmethod
    def require_fit(cls, recipe: StreamRecipe, target: Decoder) -> None:
        """The same, and that streams have layers to run in."""
        super().require_fit(recipe, target)
        if recipe.start_layer == target.config.num_layers:
            msg = f"start_layer {recipe.start_layer}: the target has no layer after it"
            raise TrainingError(msg)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Soft cross-entropy of the streams; counts the rows that had some."""
        return self._learner.loss(self._texts(batch), generator)

    def evaluate(self) -> Mapping[str, float]:
        """Held-out agreement of every stream with the target."""
        return self._learner.agreement(map(self._texts, self.held_out_batches()))

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Grow the tree on training answers, save, load again, and simulate rounds on the held-out greedy answers."""
        target = self.target
        answers = TreeAnswers(self, self.greedy(grown_on(self.num_conversations)), progress)
        model = deepcopy(self.module).to(target.embedding.weight.dtype).eval().requires_grad_(requires_grad=False)
        paths = answers.grow(self._ranks(StreamTree(model, target, self.kept_ids, ())), self.recipe.num_nodes)
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
        return answers.judge(self._ranks(loaded), loaded.paths, self.recipe.tree_sizes)

    def _ranks(self, tree: StreamTree) -> Callable[[int], Ranks]:
        def ranks(index: int) -> Ranks:
            row, x_TD = self.states.conversations[index], self.states.rows(self.recipe.start_layer, index)
            return tree.level_ranks(row.ids, start=len(row.prompt), x_TD=x_TD.to(self.states.device, tree.dtype))

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
