"""Batches: conversations as padded tensors with the target's states, and the losses on them.

The cross-entropy between a teacher's softmax t and a student with state x and frozen output rows W is
`logsumexp(W x) - x . (W' t)`. So of the teacher only the mean row `W' t` is needed, which is computed once for all
students of a position.

Shape legend: B conversations, T tokens, D hidden size, E exit-feature layers, M answer positions of the batch, V kept
tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from runtime.arrays import normalise_features
from runtime.models.decoder import causal_mask
from training.data.states import TargetStates


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Some conversations, padded on the right.

    Attributes:
        ids: token ids, [B, T].
        predicting: whether a position predicts an answer token, [B, T]; True at M positions.
        final_MD: the target's normalised final states at these positions; their softmax is the teacher.
    """

    ids: Tensor
    predicting: Tensor
    final_MD: Tensor

    @property
    def positions(self) -> Tensor:
        """Positions in the conversations, [T]."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)

    @property
    def mask(self) -> Tensor:
        """The causal mask in bfloat16."""
        return causal_mask(self.ids.shape[1], torch.bfloat16).to(self.ids.device)


def make_batch(states: TargetStates, indices: Sequence[int]) -> Batch:
    """Return the batch of some conversations, on the target's device."""
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
    """Return the states after `layer` at the positions that predict answer tokens, as in the batch, [M, D]."""
    parts = [states.rows(layer, index)[-len(states.conversations[index].answer) - 1 : -1] for index in indices]
    return torch.cat(parts).to(states.device)


def exit_features(states: TargetStates, indices: Sequence[int], layers: Sequence[int]) -> Tensor:
    """Return `normalise_features` of the states after `layers`, zero-padded on the right, [B, T, E * D] bfloat16."""
    hidden_BTED = torch.stack([states.padded(layer, indices) for layer in layers], dim=2)
    return normalise_features(hidden_BTED, states.target.config.norm_eps)  # type: ignore[no-any-return]


def shifted_features(
    states: TargetStates, indices: Sequence[int], layers: Sequence[int], present: Tensor
) -> Tensor | None:
    """Return at each position the exit features of the one before, [B, T, E * D]; None without layers.

    They are zero where not `present` [B, T], and at position 0.
    """
    if not layers:
        return None
    shifted = pad(exit_features(states, indices, layers)[:, :-1], (0, 0, 1, 0))
    return shifted * present.to(shifted.device).unsqueeze(-1)


def soft_cross_entropy(student_logits_MV: Tensor, teacher_logits_MV: Tensor) -> Tensor:
    """Return the mean cross-entropy to the teacher's softmax: KL divergence plus a constant."""
    teacher = teacher_logits_MV.float().softmax(-1)
    return -(teacher * student_logits_MV.float().log_softmax(-1)).sum(-1).mean()


_ROWS_PER_PIECE = 256
"""Small enough that a piece's logits stay in a core's cache."""


@torch.no_grad()
def mean_rows(final_MD: Tensor, head_VD: Tensor) -> Tensor:
    """Return the mean of `head_VD`'s rows under the teacher's softmax, which comes from `final_MD`, [M, D]."""
    pieces = torch.split(final_MD.to(head_VD.dtype), _ROWS_PER_PIECE)
    return torch.cat([(piece @ head_VD.T).softmax(-1) @ head_VD for piece in pieces])


def cross_entropy_to_mean_rows(x_MD: Tensor, mean_MD: Tensor, head_VD: Tensor) -> Tensor:
    """Return the mean cross-entropy of `head_VD @ x` to the teacher of `mean_rows`; only `x_MD` gets a gradient."""
    loss: Tensor = _CrossEntropy.apply(x_MD, mean_MD, head_VD)  # type: ignore[no-untyped-call]
    return loss


def decayed_mean(losses: Sequence[Tensor], decay: float) -> Tensor:
    """Return the weighted mean of losses; each weighs `decay` times as much as the one before."""
    weights = [decay**place for place in range(len(losses))]
    weighted = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
    return torch.stack(weighted).sum() / sum(weights)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, mean_MD: Tensor, head_VD: Tensor) -> Tensor:
        total = torch.zeros((), device=x_MD.device)
        gradients = []
        pieces = torch.split(x_MD.to(head_VD.dtype), _ROWS_PER_PIECE), torch.split(mean_MD, _ROWS_PER_PIECE)
        for x, mean in zip(*pieces, strict=True):
            logits = x @ head_VD.T
            probs = logits.softmax(-1)
            largest, place = logits.max(-1, keepdim=True)
            log_total = largest.float() - probs.gather(-1, place).float().log()
            total += log_total.sum() - (x.float() * mean.float()).sum()
            gradients.append((probs @ head_VD).float() - mean.float())
        count = max(len(x_MD), 1)
        ctx.save_for_backward((torch.cat(gradients) / count).to(x_MD.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_outputs[0], None, None
