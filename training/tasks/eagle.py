"""Train EAGLE heads on the target's cached states.

- EAGLE-1: SmoothL1 between the head's feature and the target's, plus a tenth of the soft cross-entropy, on noisy
  features. Ten times as much cross-entropy agreed less with the target, above all on the head's own features.
- EAGLE-3: soft cross-entropy alone, over several steps on the head's own features, each worth 0.8 of the one
  before.

Cross-entropy is taken over the kept vocabulary, at answer positions. Shapes: legend of `training.tasks.eagle_rows`,
plus V kept output tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from decoding.progress import ReportCount
from runtime.drafters.eagle.folder import load_eagle1, load_eagle3, save_eagle
from runtime.drafters.eagle.model import EagleHead
from runtime.models.decoder import Decoder
from training.data.states import TargetStates
from training.judging.drafter_acceptance import judge_trees
from training.recipe import Eagle1Recipe, Eagle3Recipe
from training.tasks.distillation import cross_entropy_to_mean_rows, mean_rows
from training.tasks.eagle_rows import EagleRows, root_states, row_features, unroll
from training.tasks.eagle_start import initial_head
from training.tasks.states_task import Judgement, Metadata, StatesTask

_EVALUATED_STEPS = 4


class EagleTask(StatesTask[Eagle1Recipe | Eagle3Recipe]):
    """Trains an EAGLE head of either kind."""

    def __init__(
        self, recipe: Eagle1Recipe | Eagle3Recipe, target: Decoder, kept_ids: Tensor, states: TargetStates
    ) -> None:
        super().__init__(recipe, target, kept_ids, states)
        self.module: EagleHead = initial_head(recipe, target, kept_ids, states).to(states.device)
        self._head_VD = self.module.lm_head.weight.to(torch.bfloat16)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """The recipe's loss of a batch."""
        rows = EagleRows.of(self.states, batch)
        wanted_MD = root_states(self.states, batch, rows)
        mean_MD = mean_rows(wanted_MD, self._head_VD)
        with torch.autocast(self.states.device.type, dtype=torch.bfloat16):
            entered_RD = self.module.input_feature(self._features(batch))
            if isinstance(self.recipe, Eagle1Recipe):
                noise = torch.rand(entered_RD.shape, generator=generator).to(entered_RD) - 0.5
                entered_RD = entered_RD + 2 * self.recipe.noise * noise
                (feature_MD,) = unroll(self.module, rows, entered_RD, 1)
                total = F.smooth_l1_loss(feature_MD.float(), wanted_MD.float())
                total = total + self.recipe.cross_entropy_weight * self._cross_entropy(feature_MD, mean_MD)
            else:
                total = torch.zeros((), device=self.states.device)
                for step, feature_MD in enumerate(unroll(self.module, rows, entered_RD, self.recipe.num_steps)):
                    at = rows.surviving(step)
                    if len(at):
                        cross_entropy = self._cross_entropy(feature_MD[at], mean_MD[at + step])
                        total = total + self.recipe.step_weight**step * cross_entropy
        return total, len(wanted_MD)

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """Held-out top-1 agreement with the target in step 0 and in the steps on the head's own features."""
        hits, totals = [0] * _EVALUATED_STEPS, [0] * _EVALUATED_STEPS
        for batch in self.held_out_batches():
            rows = EagleRows.of(self.states, batch)
            wanted = (root_states(self.states, batch, rows) @ self._head_VD.T).argmax(-1)
            with torch.autocast(self.states.device.type, dtype=torch.bfloat16):
                entered = self.module.input_feature(self._features(batch))
                for step, feature_MD in enumerate(unroll(self.module, rows, entered, _EVALUATED_STEPS)):
                    at = rows.surviving(step)
                    found = self.module.lm_head(self.module.output_state(feature_MD[at])).argmax(-1)
                    hits[step] += int((found == wanted[at + step]).sum())
                    totals[step] += len(at)
        return {f"agreement_step{step + 1}": hits[step] / max(totals[step], 1) for step in range(_EVALUATED_STEPS)}

    def _features(self, batch: Sequence[int]) -> Tensor:
        """The target's features of the position before each row, [R, E]."""
        layers = self.recipe.state_layers or (self.states.layers[-1],)
        return row_features(self.states, batch, layers)

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Save the head, load it again, and simulate rounds with its trees on the held-out greedy answers."""
        recipe, states = self.recipe, self.states
        save_eagle(self.module, folder, feature_layers=recipe.state_layers, target_name=target_name, metadata=metadata)
        load = load_eagle1 if isinstance(recipe, Eagle1Recipe) else load_eagle3
        drafter = load(folder, states.target, dtype=torch.float32)
        greedy = self.greedy(self.held_out)
        ranks = []
        for done, index in enumerate(greedy):
            progress(done, len(greedy))
            row = states.conversations[index]
            features_TE = row_features(states, [index], drafter.feature_layers)
            ranks.append(
                drafter.ranks_along(
                    row.ids,
                    start=len(row.prompt),
                    features_TE=features_TE,
                    depth=recipe.tree_depth,
                    top_k=recipe.tree_top_k,
                )
            )
        return Judgement(acceptance=tuple(judge_trees(ranks, sizes=recipe.tree_sizes)) if greedy else ())

    def _cross_entropy(self, feature_MD: Tensor, mean_MD: Tensor) -> Tensor:
        return cross_entropy_to_mean_rows(self.module.output_state(feature_MD), mean_MD, self._head_VD)
