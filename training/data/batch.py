"""Conversations as padded tensors, with the target's states at their positions.

Shapes: B conversations, T tokens, D hidden size, E exit-feature layers, M answer positions of the batch, V kept tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from runtime.drafters.language_model.draft_passes import normalise_features
from runtime.models.decoder import causal_mask
from training.data.states import TargetStates


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Some conversations, padded on the right: `ids` [B, T], and the M positions `predicting` an answer token [B, T].

    `final_MD` are the target's normalised final states there: its softmax is the teacher.
    """

    ids: Tensor
    predicting: Tensor
    final_MD: Tensor

    @property
    def positions(self) -> Tensor:
        """Places in the conversations, [T]."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)

    @property
    def mask(self) -> Tensor:
        """The causal mask of layers in bfloat16."""
        return causal_mask(self.ids.shape[1], torch.bfloat16).to(self.ids.device)


def make_batch(states: TargetStates, indices: Sequence[int]) -> Batch:
    """The batch of the given conversations, on the target's device."""
    rows = [states.conversations[index] for index in indices]
    ids = pad_sequence([torch.tensor(row.ids) for row in rows], batch_first=True)
    predicting = torch.zeros(ids.shape, dtype=torch.bool)
    for at, row in enumerate(rows):
        predicting[at, len(row.prompt) - 1 : len(row.ids) - 1] = True
    return Batch(
        ids=ids.to(states.device),
        predicting=predicting.to(states.device),
        final_MD=answer_states(states, indices, states.layers[-1]),
    )


def answer_states(states: TargetStates, indices: Sequence[int], layer: int) -> Tensor:
    """States after `layer` at the positions that predict an answer token, conversation by conversation, [M, D]."""
    parts = [states.rows(layer, index)[-len(states.conversations[index].answer) - 1 : -1] for index in indices]
    return torch.cat(parts).to(states.device)


def exit_features(states: TargetStates, indices: Sequence[int], layers: Sequence[int]) -> Tensor:
    """Return the features (`normalise_features`) of the states after `layers`, zero-padded, [B, T, E * D] bfloat16."""
    hidden_BTED = torch.stack([states.padded(layer, indices) for layer in layers], dim=2)
    return normalise_features(hidden_BTED, states.target.config.norm_eps)  # type: ignore[no-any-return]


def shifted_features(
    states: TargetStates, indices: Sequence[int], layers: Sequence[int], present: Tensor
) -> Tensor | None:
    """Features of the previous position, zero where `present` [B, T] is false and at position 0; None if no layers."""
    if not layers:
        return None
    shifted = pad(exit_features(states, indices, layers)[:, :-1], (0, 0, 1, 0))
    return shifted * present.to(shifted.device).unsqueeze(-1)


def soft_cross_entropy(student_logits_MV: Tensor, teacher_logits_MV: Tensor) -> Tensor:
    """Mean cross-entropy to the teacher's softmax: KL divergence plus a constant."""
    teacher = teacher_logits_MV.float().softmax(-1)
    return -(teacher * student_logits_MV.float().log_softmax(-1)).sum(-1).mean()
