"""The rows an EAGLE head is trained on, and its steps on its own features.

A root is a position that predicts an answer token. Step 0 feeds every position with the target's feature. Step j
feeds root s the true token s + j and the head's own feature of step j - 1, as drafting does: it sees the keys of
step 0 up to position s, then its own keys of steps 1 to j. That is the training-time test of EAGLE-3
(arXiv 2503.01840); the step of EAGLE-1 is step 0 alone.

Shapes: R positions of the batch in one row, M roots among them in the same order, the others of
`runtime.drafters.eagle.model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.drafters.eagle.model import EagleHead
from runtime.drafters.language_model.model import normalise_features
from training.data.states import TargetStates


@dataclass(frozen=True, kw_only=True, slots=True)
class EagleRows:
    """Positions 1 to T - 2 of some conversations of T tokens, one conversation after the other.

    Attributes:
        ids: tokens, [R].
        positions: places in their conversation, [R].
        roots: rows that predict an answer token, [M].
        left: for each root, how many roots of its conversation follow it, [M].
        lengths: rows of each conversation.
        num_roots: roots of each conversation: its last rows.
    """

    ids: Tensor
    positions: Tensor
    roots: Tensor
    left: Tensor
    lengths: tuple[int, ...]
    num_roots: tuple[int, ...]

    @classmethod
    def of(cls, states: TargetStates, indices: Sequence[int]) -> EagleRows:
        """The rows of the given conversations, on the target's device."""
        rows = [states.conversations[index] for index in indices]
        lengths = [len(row.ids) - 2 for row in rows]
        # position 0 has no feature before it, so a prompt of one token loses its first root
        num_roots = [min(len(row.answer), length) for row, length in zip(rows, lengths, strict=True)]
        stops = torch.tensor(lengths).cumsum(0).tolist()
        roots = [torch.arange(stop - count, stop) for stop, count in zip(stops, num_roots, strict=True)]
        return cls(
            ids=torch.tensor([token for row in rows for token in row.ids[1:-1]], device=states.device),
            positions=torch.cat([torch.arange(1, length + 1) for length in lengths]).to(states.device),
            roots=torch.cat(roots).to(states.device),
            left=torch.cat([torch.arange(count - 1, -1, -1) for count in num_roots]).to(states.device),
            lengths=tuple(lengths),
            num_roots=tuple(num_roots),
        )

    def surviving(self, step: int) -> Tensor:
        """Roots m, as indices into M, whose position after `step` steps is still in the answer.

        What they predict there is what root m + `step` predicts in step 0.
        """
        return (self.left >= step).nonzero().flatten()


def row_features(states: TargetStates, indices: Sequence[int], layers: Sequence[int]) -> Tensor:
    """The target's features of the position before each row, as the channel carries them, [R, E] bfloat16."""
    parts = [torch.stack([states.rows(layer, index)[:-2] for layer in layers], dim=1) for index in indices]
    hidden_RED = torch.cat(parts).to(states.device)
    last = states.target.config.num_layers
    if last in layers:
        # its cached states carry the final norm's weight already
        hidden_RED[:, layers.index(last)] /= states.target.final_norm
    return normalise_features(hidden_RED, states.target.config.norm_eps)


def row_states(states: TargetStates, indices: Sequence[int]) -> Tensor:
    """What the target's head reads at each row, [R, D] bfloat16."""
    return torch.cat([states.rows(states.layers[-1], index)[1:-1] for index in indices]).to(states.device)


def unroll(head: EagleHead, rows: EagleRows, feature_RD: Tensor, num_steps: int) -> Iterator[Tensor]:
    """The head's features [M, D] of steps 0, 1, ...; after the end of an answer they mean nothing.

    Args:
        head: its mode of arithmetic is the caller's (autocast).
        rows: what to feed.
        feature_RD: `head.input_feature` of the target's features of the position before each row.
        num_steps: how many steps to make.
    """
    layer, roots = head.layer, rows.roots
    attended, residual = head.read(head.embedding(rows.ids), feature_RD)
    q, k_RKH, v_RKH = layer.project(attended, head.rotary(rows.positions, attended.dtype))
    q_MNH, residual = q[roots], residual[roots]
    feature_MD = residual
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    for step in range(num_steps):
        if step:
            at = (roots + step).clamp_max(len(rows.ids) - 1)
            attended, residual = head.read(head.embedding(rows.ids[at]), feature_MD)
            rotary = head.rotary(rows.positions[roots] + step, attended.dtype)
            q_MNH, k, v = layer.project(attended, rotary)
            own_keys.append(k)
            own_values.append(v)
        feature_MD = layer.finish(residual, _attend(rows, q_MNH, (k_RKH, v_RKH), own_keys, own_values))
        yield feature_MD


def _attend(
    rows: EagleRows, q_MNH: Tensor, shared: tuple[Tensor, Tensor], own_keys: list[Tensor], own_values: list[Tensor]
) -> Tensor:
    """What the roots' queries gather, [M, N * H]: from rows up to their own, then from their own later steps."""
    num_kv_heads = shared[0].shape[1]
    num_roots, _, width = q_MNH.shape
    q_MKGH = q_MNH.reshape(num_roots, num_kv_heads, -1, width) * width**-0.5
    own_scores = [(q_MKGH * k_MKH.unsqueeze(2)).sum(-1, dtype=torch.float32) for k_MKH in own_keys]
    own_MKGJ = torch.stack(own_scores, dim=-1) if own_scores else q_MKGH.new_zeros(*q_MKGH.shape[:3], 0)
    shared_outputs, own_weights = [], []
    start = root = 0
    for length, count in zip(rows.lengths, rows.num_roots, strict=True):
        k_KSH, v_KSH = (x[start : start + length].transpose(0, 1) for x in shared)
        q_KAH = q_MKGH[root : root + count].permute(1, 2, 0, 3).flatten(1, 2)
        scores = (q_KAH @ k_KSH.transpose(1, 2)).view(num_kv_heads, -1, count, length).float()
        unseen = torch.ones(count, length, dtype=torch.bool, device=scores.device).triu_(length - count + 1)
        own = own_MKGJ[root : root + count].permute(1, 2, 0, 3)
        weights = torch.cat([scores.masked_fill(unseen, -torch.inf), own], dim=-1).softmax(-1)
        output = weights[..., :length].flatten(1, 2).to(v_KSH.dtype) @ v_KSH
        shared_outputs.append(output.view(num_kv_heads, -1, count, v_KSH.shape[-1]).permute(2, 0, 1, 3))
        own_weights.append(weights[..., length:].permute(2, 0, 1, 3))
        start, root = start + length, root + count
    seen_MKGH = torch.cat(shared_outputs)
    weights_MKGJ = torch.cat(own_weights)
    for step, v_MKH in enumerate(own_values):
        seen_MKGH = seen_MKGH + weights_MKGJ[..., step, None].to(v_MKH.dtype) * v_MKH.unsqueeze(2)
    return seen_MKGH.flatten(1)
