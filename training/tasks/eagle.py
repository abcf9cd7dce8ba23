"""Trains EAGLE heads on the target's cached states.

- EAGLE-1: SmoothL1 between the head's feature and the target's, plus 0.1 of the soft cross-entropy, on noisy features.
  Ten times as much cross-entropy agreed less with the target.
- EAGLE-3: soft cross-entropy over several steps on the head's own features; each step weighs 0.8 of the one before.

Losses are taken at roots: positions that predict an answer token. Step 0 feeds all positions with the target's
features. Step j feeds root s with the true token s + j and the head's feature of step j - 1, as drafting does. It
attends to the keys of step 0 up to position s, and to its own keys of steps 1 to j (the training-time test of arXiv
2503.01840).

Shape legend: R positions of the batch in one row, M roots among them in the same order, V kept output tokens; others as
in `runtime.drafters.eagle.model`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from decoding.progress import ReportCount
from runtime.arrays import normalise_features
from runtime.drafters.eagle.folder import load_eagle1, load_eagle3, save_eagle
from runtime.drafters.eagle.model import Eagle1, Eagle3, EagleHead
from runtime.models.decoder import Decoder
from training.data.batch import cross_entropy_to_mean_rows, mean_rows
from training.data.states import TargetStates
from training.judging.drafter_acceptance import judge_trees
from training.recipe import Eagle1Recipe, Eagle3Recipe
from training.tasks.states_task import Judgement, Metadata, StatesTask

_EVALUATED_STEPS = 4
_FITTED_CONVERSATIONS = 96
_RIDGE = 1e-3


class EagleTask(StatesTask[Eagle1Recipe | Eagle3Recipe]):
    """Trains an EAGLE head of either kind."""

    def __init__(self, recipe: Eagle1Recipe | Eagle3Recipe, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states)
        self.module: EagleHead = initial_head(recipe, kept_ids, states).to(states.device)

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Return the loss of a batch (see the module), and the number of roots."""
        rows = EagleRows.of(self.states, batch)
        wanted_MD = row_states(self.states, batch)[rows.roots]
        mean_MD = mean_rows(wanted_MD, self.head_VD)
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
        """Return the held-out top-1 agreement with the target in each of `_EVALUATED_STEPS` steps."""
        hits, totals = [0] * _EVALUATED_STEPS, [0] * _EVALUATED_STEPS
        for batch in self.held_out_batches():
            rows = EagleRows.of(self.states, batch)
            wanted = (row_states(self.states, batch)[rows.roots] @ self.head_VD.T).argmax(-1)
            with torch.autocast(self.states.device.type, dtype=torch.bfloat16):
                entered = self.module.input_feature(self._features(batch))
                for step, feature_MD in enumerate(unroll(self.module, rows, entered, _EVALUATED_STEPS)):
                    at = rows.surviving(step)
                    found = self.module.lm_head(self.module.output_state(feature_MD[at])).argmax(-1)
                    hits[step] += int((found == wanted[at + step]).sum())
                    totals[step] += len(at)
        return {f"agreement_step{step + 1}": hits[step] / max(totals[step], 1) for step in range(_EVALUATED_STEPS)}

    def _features(self, batch: Sequence[int]) -> Tensor:
        return row_features(self.states, batch, self.recipe.state_layers or (self.target.config.num_layers,))

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Save and reload the head, and judge its trees on held-out greedy answers."""
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
            shapes = [(recipe.tree_depth, recipe.tree_top_k)]
            ranks += drafter.ranks_along(row.ids, start=len(row.prompt), features_TE=features_TE, shapes=shapes)
        return Judgement(acceptance=tuple(judge_trees(ranks, sizes=recipe.tree_sizes)))

    def _cross_entropy(self, feature_MD: Tensor, mean_MD: Tensor) -> Tensor:
        return cross_entropy_to_mean_rows(self.module.output_state(feature_MD), mean_MD, self.head_VD)


@dataclass(frozen=True, kw_only=True, slots=True)
class EagleRows:
    """Positions 1 to T - 2 of some conversations of T tokens, one conversation after the other.

    Attributes:
        ids, positions: token and position of each row, [R].
        roots: indices of the rows that predict an answer token (the last rows of each conversation), [M].
        left: number of roots of the same conversation that follow each root, [M].
        lengths, num_roots: rows and roots of each conversation.
    """

    ids: Tensor
    positions: Tensor
    roots: Tensor
    left: Tensor
    lengths: tuple[int, ...]
    num_roots: tuple[int, ...]

    @classmethod
    def of(cls, states: TargetStates, indices: Sequence[int]) -> "EagleRows":
        """Return the rows of some conversations, on the target's device."""
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
        """Return indices into `roots` of those whose position after `step` steps is still in the answer."""
        return (self.left >= step).nonzero().flatten()


def row_features(states: TargetStates, indices: Sequence[int], layers: Sequence[int]) -> Tensor:
    """Return the target's normalised features at the position before each row, [R, E] bfloat16."""
    parts = [torch.stack([states.rows(layer, index)[:-2] for layer in layers], dim=1) for index in indices]
    hidden_RED = torch.cat(parts).to(states.device)
    last = states.target.config.num_layers
    if last in layers:
        # the cached states of the last layer are stored after the final norm
        hidden_RED[:, layers.index(last)] /= states.target.final_norm
    return normalise_features(hidden_RED, states.target.config.norm_eps)  # type: ignore[no-any-return]


def row_states(states: TargetStates, indices: Sequence[int]) -> Tensor:
    """Return the input of the target's `lm_head` at each row, [R, D] bfloat16."""
    return torch.cat([states.rows(states.layers[-1], index)[1:-1] for index in indices]).to(states.device)


def unroll(head: EagleHead, rows: EagleRows, feature_RD: Tensor, num_steps: int) -> Iterator[Tensor]:
    """Yield the head's features at the roots, [M, D], of steps 0, 1, ...

    `feature_RD`: `head.input_feature` of `row_features`.
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
    """Return the attention output at the roots, [M, N * H]: over all rows up to a root, and over its later steps."""
    outputs = []
    start = root = 0
    for length, count in zip(rows.lengths, rows.num_roots, strict=True):
        before, own = slice(start, start + length), slice(root, root + count)
        k_SKH, v_SKH = (
            torch.cat([seen[before], *(step[own] for step in steps)])
            for seen, steps in zip(shared, (own_keys, own_values), strict=True)
        )
        is_seen = torch.ones(count, length, device=q_MNH.device).tril_(length - count)
        is_own = torch.eye(count, device=q_MNH.device).repeat(1, len(own_keys))
        mask = torch.cat([is_seen, is_own], dim=1).bool()
        q, k, v = (one.transpose(0, 1).unsqueeze(0) for one in (q_MNH[own], k_SKH, v_SKH))
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        outputs.append(output[0].transpose(0, 1).flatten(1))
        start, root = start + length, root + count
    return torch.cat(outputs)


def initial_head(recipe: Eagle1Recipe | Eagle3Recipe, kept_ids: Tensor, states: TargetStates) -> EagleHead:
    """Return a float32 head on the target's frozen embedding and `lm_head` rows.

    `fuse` is fitted by least squares to the wanted feature, which alone agrees with the target on about every fifth
    token. The layer is a copy of a target's layer; its output projections start at zero, as their scale would not fit.
    """
    head: EagleHead
    target = states.target
    with torch.no_grad():
        source = _weights_of(target, recipe.source_layer)
        if isinstance(recipe, Eagle1Recipe):
            head = Eagle1(target.config, recipe.vocab_size)
            # features are scaled by the final norm's weight, but the source layer expects states of unit scale
            qkv = source["qkv.weight"] * (source["input_norm"] / target.final_norm)
        else:
            head = Eagle3(target.config, recipe.vocab_size, len(recipe.feature_layers))
            head.output_norm.copy_(target.final_norm)
            # the half that reads embeddings starts as the target's first layer, which does so too
            halves = [weights["qkv.weight"] * weights["input_norm"] for weights in (_weights_of(target, 1), source)]
            qkv = torch.cat(halves, dim=1)
        head.layer.qkv.weight.copy_(qkv)
        head.layer.gate_up.weight.copy_(source["gate_up.weight"])
        head.layer.mlp_norm.copy_(source["mlp_norm"])
        nn.init.zeros_(head.layer.out.weight)
        nn.init.zeros_(head.layer.down.weight)
        head.share(target, kept_ids)
        head.float().to(states.device)
        trained = range(min(_FITTED_CONVERSATIONS, len(states.conversations) - recipe.num_held_out))
        _fit(head, states, trained, recipe.state_layers or (target.config.num_layers,))
    return head


def _weights_of(target: Decoder, layer: int) -> dict[str, Tensor]:
    return {name: weight.float() for name, weight in target.layers[layer - 1].state_dict().items()}


def _fit(head: EagleHead, states: TargetStates, indices: range, layers: tuple[int, ...]) -> None:
    """Fit `head.fuse` to predict the wanted feature of each row of some conversations from the head's input."""
    wanted_RD = row_states(states, indices).float()
    features = row_features(states, indices, layers).float()
    if isinstance(head, Eagle1):
        ids = EagleRows.of(states, indices).ids
        inputs = torch.cat([head.embedding(ids), head.input_feature(features)], dim=-1)
        head.fuse.weight.copy_(_least_squares(inputs, wanted_RD))
    elif isinstance(head, Eagle3):
        head.fuse.weight.copy_(_least_squares(features, wanted_RD / head.output_norm))


def _least_squares(inputs_RI: Tensor, wanted_RD: Tensor) -> Tensor:
    """Return the matrix [D, I] that maps inputs to wanted features with the least squares (and a small ridge)."""
    gram = inputs_RI.T @ inputs_RI
    gram += _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
    solution_ID: Tensor = torch.linalg.solve(gram, inputs_RI.T @ wanted_RD)
    return solution_ID.T
