"""What an EAGLE head starts as: a least-squares guess of the wanted feature, around a layer of the target's.

The guess alone agrees with the target on about every fifth token. The layer's inner weights are copies; what it
adds to the guess starts at zero, because a copy would add what the target's own states need, at their scale.
Shapes: legend of `training.tasks.eagle_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from runtime.drafters.eagle.model import Eagle1, Eagle3, EagleHead, EagleLayer
from runtime.models.decoder import Decoder
from training.data.states import TargetStates
from training.recipe import Eagle1Recipe, Eagle3Recipe
from training.tasks.eagle_rows import EagleRows, row_features

_FITTED_CONVERSATIONS = 96
_RIDGE = 1e-3


def initial_head(
    recipe: Eagle1Recipe | Eagle3Recipe, target: Decoder, kept_ids: Tensor, states: TargetStates
) -> EagleHead:
    """A head in float32 on the target's embedding and rows of its output head, which are frozen."""
    head: EagleHead
    with torch.no_grad():
        head = _initial_eagle1(recipe, target) if isinstance(recipe, Eagle1Recipe) else _initial_eagle3(recipe, target)
        head.share(target.embedding.weight.float(), target.lm_head.weight[kept_ids].float(), kept_ids)
        head.to(states.device)
        _fit(head, states, recipe.state_layers or (target.config.num_layers,))
    return head


def _initial_eagle1(recipe: Eagle1Recipe, target: Decoder) -> Eagle1:
    head = Eagle1(target.config, recipe.vocab_size)
    head.target_norm.copy_(target.final_norm)
    source = _weights_of(target, recipe.source_layer)
    _copy_inner(head.layer, source)
    # a feature carries the weight of the final norm, where the source reads a state of unit scale
    head.layer.qkv.weight.copy_(source["qkv.weight"] * (source["input_norm"] / target.final_norm))
    return head


def _initial_eagle3(recipe: Eagle3Recipe, target: Decoder) -> Eagle3:
    head = Eagle3(target.config, recipe.vocab_size, len(recipe.feature_layers))
    head.output_norm.copy_(target.final_norm)
    source = _weights_of(target, recipe.source_layer)
    _copy_inner(head.layer, source)
    # embeddings are what the target's first layer reads
    halves = [weights["qkv.weight"] * weights["input_norm"] for weights in (_weights_of(target, 1), source)]
    head.layer.qkv.weight.copy_(torch.cat(halves, dim=1))
    return head


def _weights_of(target: Decoder, layer: int) -> dict[str, Tensor]:
    """Weights of a layer counted from 1, in float32."""
    return {name: weight.float() for name, weight in target.layers[layer - 1].state_dict().items()}


def _copy_inner(layer: EagleLayer, source: Mapping[str, Tensor]) -> None:
    layer.gate_up.weight.copy_(source["gate_up.weight"])
    layer.mlp_norm.copy_(source["mlp_norm"])
    nn.init.zeros_(layer.out.weight)
    nn.init.zeros_(layer.down.weight)


def _fit(head: EagleHead, states: TargetStates, layers: tuple[int, ...]) -> None:
    """Let `fuse` predict the feature of each row from what the row is fed."""
    indices = range(min(_FITTED_CONVERSATIONS, len(states.conversations)))
    rows = EagleRows.of(states, indices)
    stored = [
        states.rows(states.layers[-1], index)[1 : length + 1]
        for index, length in zip(indices, rows.lengths, strict=True)
    ]
    wanted_RD = torch.cat(stored).to(states.device).float()
    features = row_features(states, indices, layers).float()
    if isinstance(head, Eagle1):
        inputs = torch.cat([head.embedding(rows.ids), head.input_feature(features)], dim=-1)
        head.fuse.weight.copy_(least_squares(inputs, wanted_RD))
    elif isinstance(head, Eagle3):
        head.fuse.weight.copy_(least_squares(features, wanted_RD / head.output_norm))


def least_squares(inputs_RI: Tensor, wanted_RD: Tensor) -> Tensor:
    """The matrix [D, I] whose products with the inputs come closest to what is wanted (with a small ridge)."""
    gram = inputs_RI.T @ inputs_RI
    gram += _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
    solution_ID: Tensor = torch.linalg.solve(gram, inputs_RI.T @ wanted_RD)
    return solution_ID.T
