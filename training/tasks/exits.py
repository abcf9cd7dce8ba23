"""Train early-exit adapters on the target's cached states; measure exit coverage.

Every adapter learns to predict the target's softmax over the kept vocabulary from the state after its layer. Shapes:
legend of `training.data.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from decoding.progress import ReportCount
from runtime.models.decoder import rms_norm
from runtime.target.early_exits import ExitHeads, load_exits, save_exits
from runtime.target.exit_adapter import ExitAdapter
from training.data.batch import answer_states, soft_cross_entropy
from training.data.states import TargetStates
from training.judging.drafter_acceptance import AgreementCount
from training.recipe import ExitRecipe
from training.tasks.states_task import Judgement, Metadata, StatesTask

COVERAGE_TOP_K = (1, 2, 4, 8, 16)


class ExitTask(StatesTask[ExitRecipe]):
    """Trains the adapters of several exit layers at once."""

    def __init__(self, recipe: ExitRecipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states)
        config = self.target.config
        generator = torch.Generator().manual_seed(recipe.optimisation.seed)
        self.adapters = {
            layer: ExitAdapter(config.hidden_size, recipe.width, config.norm_eps) for layer in recipe.exit_layers
        }
        for adapter in self.adapters.values():
            nn.init.normal_(adapter.up.weight, std=config.hidden_size**-0.5, generator=generator)
        self.module: nn.Module = nn.ModuleDict({str(layer): adapter for layer, adapter in self.adapters.items()})
        self.module.to(states.device)
        self._head_VD = self.target.lm_head.weight[self.kept_ids].to(torch.bfloat16)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:  # noqa: ARG002
        """Mean soft cross-entropy over the exits."""
        final_MD = answer_states(self.states, batch, self.states.layers[-1])
        teacher = final_MD @ self._head_VD.T
        losses = []
        for layer, adapter in self.adapters.items():
            logits_MV = self._logits(adapter, answer_states(self.states, batch, layer), self._head_VD)
            losses.append(soft_cross_entropy(logits_MV, teacher))
        return torch.stack(losses).mean(), len(final_MD)

    def evaluate(self) -> Mapping[str, float]:
        """Held-out coverage, one figure per layer and k."""
        return self.coverage(self.adapters, self.kept_ids).figures("coverage_layer")

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Save the adapters, load them again, and measure what the exits cover with and without them."""
        exits = ExitHeads(adapters=self.adapters, kept_ids=self.kept_ids)
        save_exits(exits, folder, target=self.target, target_name=target_name, metadata=metadata)
        loaded = load_exits(folder, self.target, dtype=torch.float32)
        progress(0, 2)
        trained = self.coverage(loaded.adapters, loaded.kept_ids)
        progress(1, 2)
        untrained = self.coverage(dict.fromkeys(loaded.adapters, nn.Identity()), loaded.kept_ids)
        return Judgement(exit_coverage=trained.shares, untrained_exit_coverage=untrained.shares)

    @torch.no_grad()
    def coverage(self, adapters: Mapping[int, nn.Module], kept_ids: Tensor) -> AgreementCount:
        """Count how often the target's argmax is among an exit's k best kept ids on held-out answers.

        `nn.Identity` in place of an adapter gives the coverage of an untrained exit.
        """
        states, head_VD = self.states, self.target.lm_head.weight.to(torch.bfloat16)
        kept_ids = kept_ids.to(states.device)
        kept_VD = head_VD[kept_ids]
        place_of_id = torch.full((len(head_VD),), -1, device=states.device)
        place_of_id[kept_ids] = torch.arange(len(kept_ids), device=states.device)
        count = AgreementCount(COVERAGE_TOP_K)
        for batch in self.held_out_batches():
            wanted_M = place_of_id[(answer_states(states, batch, states.layers[-1]) @ head_VD.T).argmax(-1)]
            for layer, adapter in adapters.items():
                count.add(layer, self._logits(adapter, answer_states(states, batch, layer), kept_VD), wanted_M)
        return count

    def _logits(self, adapter: nn.Module, x_MD: Tensor, head_VD: Tensor) -> Tensor:
        """Logits [M, V] of an exit from hidden states after its layer, in bfloat16 arithmetic."""
        with torch.autocast(x_MD.device.type, dtype=torch.bfloat16):
            norm = self.target.final_norm
            return rms_norm(adapter(x_MD).to(norm.dtype), norm, self.target.config.norm_eps) @ head_VD.T
