"""Train Medusa-1 heads on the target's cached last states.

The loss of head k is the cross-entropy to the target's softmax k positions later, weighted 0.8^k as in the paper
(which takes the token of the text instead). Shapes: legend of `training.data.batch`, plus K heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.drafters.medusa.drafter import MedusaDrafter
from runtime.drafters.medusa.folder import load_medusa, save_medusa
from runtime.drafters.medusa.model import MedusaConfig, MedusaModel
from runtime.models.decoder import Decoder
from training.data.states import TargetStates
from training.recipe import MedusaRecipe
from training.tasks.heads import HeadKind, HeadsTask
from training.tasks.lookahead import states_before


class MedusaTask(HeadsTask[MedusaRecipe]):
    """Trains a `MedusaModel`."""

    module: MedusaModel
    kind = HeadKind(MedusaDrafter, save_medusa, load_medusa, decay=0.8)

    def __init__(self, recipe: MedusaRecipe, target: Decoder, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, target, kept_ids, states)
        config = MedusaConfig(num_heads=recipe.num_heads, num_blocks=recipe.num_blocks, vocab_size=len(kept_ids))
        self.module = MedusaModel(target.config.hidden_size, config)
        self.module.share(target, self.kept_ids)
        self.module.to(states.device)
        self._head_VD = self.module.head_VD.to(torch.bfloat16)

    def rows(self, batch: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The target's states at the predicting positions [M, D], and every head's states there, [M, D] each."""
        final_MD, *before = states_before(self.states, batch, self.recipe.num_heads)
        with torch.autocast(self.states.device.type, dtype=torch.bfloat16):
            return final_MD, [head(x_MD.float()) for head, x_MD in zip(self.module.heads, before, strict=True)]
