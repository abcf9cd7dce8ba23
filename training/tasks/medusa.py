"""Train Medusa-1 heads on the target's cached last states.

The loss of head k is the cross-entropy to the target's softmax k positions later, weighted 0.8^k as in the paper
(which takes the token of the text instead). Shapes: legend of `training.data.batch`, plus K heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime.drafters.medusa.drafter import MedusaDrafter
from runtime.drafters.medusa.folder import load_medusa, save_medusa
from runtime.drafters.medusa.model import MedusaConfig, MedusaModel
from runtime.models.decoder import Decoder
from training.data.states import TargetStates
from training.judging.judgement import Judgement, Progress
from training.recipe import MedusaRecipe
from training.tasks.distillation import cross_entropy_to_mean_rows, mean_rows
from training.tasks.lookahead import AgreementCount, states_before
from training.tasks.tree_growth import HeadAnswers

HEAD_DECAY = 0.8
_EVALUATION_BATCH = 8


class MedusaTask:
    """`training.trainer.Task` for a `MedusaModel`; it trains where the target lies."""

    def __init__(self, recipe: MedusaRecipe, target: Decoder, kept_ids: Tensor, states: TargetStates) -> None:
        self.recipe, self.states = recipe, states
        config = MedusaConfig(num_heads=recipe.num_heads, num_blocks=recipe.num_blocks, vocab_size=len(kept_ids))
        self.module = MedusaModel(target.config.hidden_size, config)
        self.module.share(target, kept_ids.to(states.device))
        self.module.to(states.device)
        self._head_VD = self.module.head_VD.to(torch.bfloat16)
        self.num_conversations = len(states.conversations) - recipe.num_held_out

    def conversation_length(self, index: int) -> int:
        """Tokens of the conversation."""
        return len(self.states.conversations[index].ids)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:  # noqa: ARG002
        """Weighted mean of the heads' losses at the answer positions."""
        final_MD, *before = states_before(self.states, batch, self.recipe.num_heads)
        teacher_MD = mean_rows(final_MD, self._head_VD)
        losses = [cross_entropy_to_mean_rows(x_MD, teacher_MD, self._head_VD) for x_MD in self._students(before)]
        weights = [HEAD_DECAY**head for head in range(len(losses))]
        weighted = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
        return torch.stack(weighted).sum() / sum(weights), len(final_MD)

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """Held-out agreement with the target: by head, how often its token is among the k best."""
        count = AgreementCount(self.recipe.num_heads)
        held_out = range(self.num_conversations, len(self.states.conversations))
        for start in range(0, len(held_out), _EVALUATION_BATCH):
            batch = held_out[start : start + _EVALUATION_BATCH]
            final_MD, *before = states_before(self.states, batch, self.recipe.num_heads)
            students = [x_MD.to(self._head_VD.dtype) @ self._head_VD.T for x_MD in self._students(before)]
            count.add(students, (final_MD @ self._head_VD.T).argmax(-1))
        return count.shares

    def finish(self, folder: Path, *, target_name: str, metadata: Mapping[str, Any], progress: Progress) -> Judgement:
        """Grow the tree on training answers, save, load again, and simulate rounds on the held-out greedy answers."""
        target, recipe = self.states.target, self.recipe
        answers = HeadAnswers(self.states, self.num_conversations, progress)
        model = deepcopy(self.module).float().eval().requires_grad_(requires_grad=False)
        paths = answers.grow(MedusaDrafter(model, (), num_layers=target.config.num_layers), recipe.num_nodes)
        save_medusa(model, paths, folder, target=target, target_name=target_name, metadata=metadata)
        return answers.judge(load_medusa(folder, target, dtype=torch.float32), recipe.tree_sizes)

    def _students(self, before: list[Tensor]) -> list[Tensor]:
        """States of every head at the rows whose token it proposes, [M, D] each."""
        with torch.autocast(self.states.device.type, dtype=torch.bfloat16):
            return [head(x_MD.float()) for head, x_MD in zip(self.module.heads, before, strict=True)]
