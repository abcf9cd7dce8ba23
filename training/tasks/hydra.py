"""Train Hydra++ heads on the target's cached last states and the tokens after them.

The loss of every head is the cross-entropy to the target's softmax at the position it looks ahead to, the tokens
between being those of the text. Shapes: legend of `training.data.batch`, plus K heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from decoding.errors import TrainingError
from runtime.drafters.hydra.drafter import HydraDrafter
from runtime.drafters.hydra.folder import load_hydra, save_hydra
from runtime.drafters.hydra.model import HydraConfig, HydraModel
from runtime.models.decoder import Decoder, causal_mask
from training.data.states import TargetStates
from training.recipe import HydraRecipe
from training.tasks.heads import HeadKind, HeadsTask
from training.tasks.lookahead import predicting_positions


class HydraTask(HeadsTask[HydraRecipe]):
    """Trains a `HydraModel`."""

    module: HydraModel
    kind = HeadKind(HydraDrafter, save_hydra, load_hydra, decay=1.0)

    def __init__(self, recipe: HydraRecipe, target: Decoder, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, target, kept_ids, states)
        self.module = initial_hydra(recipe, target, self.kept_ids).to(states.device)
        self._head_VD = self.module.head_VD.to(torch.bfloat16)

    @classmethod
    def require_fit(cls, recipe: HydraRecipe, target: Decoder) -> None:
        """The same, and the width of the prefix layer's MLP."""
        super().require_fit(recipe, target)
        if recipe.prefix_width > target.config.intermediate_size:
            msg = f"prefix_width {recipe.prefix_width}: the target's layers have {target.config.intermediate_size}"
            raise TrainingError(msg)

    def rows(self, batch: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The target's states at the predicting positions [M, D], and every head's states there, [M, D] each."""
        ids_BT, final_BTD = _padded(self.states, batch)
        width = ids_BT.shape[1]
        places_M = self._places(batch, width)
        with torch.autocast(self.states.device.type, dtype=torch.bfloat16):
            prefix_BTD = self.module.read_prefix(
                final_BTD.float(),
                positions=torch.arange(width, device=ids_BT.device),
                mask=causal_mask(width, torch.bfloat16).to(ids_BT.device),
            )
            prefix, ids = prefix_BTD.flatten(0, 1), ids_BT.flatten()
            tokens = [self.module.embed(ids[places_M - shift]) for shift in range(self.recipe.num_heads)]
            students = [
                self.module(prefix[places_M - head], tokens[:head]) for head in range(1, self.recipe.num_heads + 1)
            ]
        return final_BTD.flatten(0, 1)[places_M], students

    def _places(self, batch: Sequence[int], width: int) -> Tensor:
        """Predicting positions of all conversations as places in the flattened batch, [M]."""
        num_heads = self.recipe.num_heads
        places = [
            at * width + position
            for at, index in enumerate(batch)
            for position in predicting_positions(self.states, index, num_heads)
        ]
        return torch.tensor(places, device=self.states.device)


def initial_hydra(recipe: HydraRecipe, target: Decoder, kept_ids: Tensor) -> HydraModel:
    """Heads in float32 that start as the target's own output head.

    The prefix layer starts as the target's last layer with the strongest neurons of its MLP; what both halves add
    starts at zero.
    """
    config = HydraConfig(
        num_heads=recipe.num_heads,
        prefix_width=recipe.prefix_width,
        head_width=recipe.head_width,
        shared_widths=recipe.shared_widths,
        vocab_size=len(kept_ids),
    )
    torch.manual_seed(recipe.optimisation.seed)
    hydra = HydraModel(target.config, config)
    source = target.layers[-1]
    weights = {name: weight.float() for name, weight in source.state_dict().items()}
    kept = _strongest_neurons(weights, recipe.prefix_width)
    both = torch.cat([kept, kept + target.config.intermediate_size])
    for name in [name for name in weights if name.startswith("gate_up")]:
        weights[name] = weights[name][both]
    weights["down.weight"] = weights["down.weight"][:, kept]
    hydra.prefix.load_state_dict(weights)
    for added in (hydra.prefix.out, hydra.prefix.down):
        for parameter in added.parameters():
            nn.init.zeros_(parameter)
    hydra.share(target, kept_ids)
    return hydra


def _strongest_neurons(weights: Mapping[str, Tensor], count: int) -> Tensor:
    """The neurons of a gated MLP with the largest product of their three norms, ascending."""
    gate, up = weights["gate_up.weight"].norm(dim=1).chunk(2)
    strength = gate * up * weights["down.weight"].norm(dim=0)
    kept: Tensor = strength.topk(count).indices.sort().values
    return kept


def _padded(states: TargetStates, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] and the target's last states [B, T, D], padded on the right with zeros."""
    rows = [states.conversations[index].ids for index in indices]
    width = max(map(len, rows))
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    final_BTD = torch.zeros(len(rows), width, states.target.config.hidden_size, dtype=torch.bfloat16)
    for at, (row, index) in enumerate(zip(rows, indices, strict=True)):
        ids_BT[at, : len(row)] = torch.tensor(row)
        final_BTD[at, : len(row)] = states.rows(states.layers[-1], index)
    return ids_BT.to(states.device), final_BTD.to(states.device)
