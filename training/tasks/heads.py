"""Trains Medusa-1 and Hydra++ heads with their trees, and early-exit adapters, on the target's cached states.

Head k proposes an answer token from the state k positions before the position that predicts it; an exit adapter reads
the state after its layer at that position. Losses are the cross-entropy to the target's softmax over the kept
vocabulary. Shape legend: as in `training.data.batch`, plus K heads.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from decoding.errors import TrainingError
from decoding.progress import ReportCount
from decoding.tree_shape import Path as TreePath
from decoding.tree_shape import Ranks
from runtime.drafters.head_drafter import HeadDrafter, TreeFolderConfig, save_tree_heads
from runtime.drafters.hydra import HydraConfig, HydraDrafter, HydraFolderConfig, HydraModel, load_hydra
from runtime.drafters.medusa import MedusaConfig, MedusaDrafter, MedusaFolderConfig, MedusaModel, load_medusa
from runtime.models.decoder import Decoder, rms_norm
from runtime.target.early_exits import ExitHeads, load_exits, save_exits
from runtime.target.exit_adapter import ExitAdapter
from training.data.batch import (
    Batch,
    answer_states,
    cross_entropy_to_mean_rows,
    decayed_mean,
    make_batch,
    mean_rows,
    soft_cross_entropy,
)
from training.data.states import TargetStates
from training.judging.drafter_acceptance import AgreementCount
from training.recipe import ExitRecipe, HydraRecipe, MedusaRecipe
from training.tasks.eagle import row_features
from training.tasks.states_task import Judgement, Metadata, StatesTask, TreeTask

R = TypeVar("R", bound=MedusaRecipe | HydraRecipe)


class HeadsTask(TreeTask[R]):
    """Trains heads that read the target's last states and propose a static tree."""

    initial: Callable[..., MedusaModel | HydraModel]
    drafter: Callable[..., HeadDrafter]
    kind: type[TreeFolderConfig]
    load: Callable[..., HeadDrafter]
    decay: float
    """Weight of each head's loss, relative to the head before."""
    module: MedusaModel | HydraModel

    def __init__(self, recipe: R, kept_ids: Tensor, states: TargetStates) -> None:
        super().__init__(recipe, kept_ids, states)
        self.module = self.initial(recipe, self.target, self.kept_ids).to(states.device)

    @abstractmethod
    def head_states(self, rows: Batch, final_BTD: Tensor, places_M: Tensor) -> list[Tensor]:
        """Return each head's states that propose the tokens after positions `places_M` of the flat batch, [M, D]."""

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:  # noqa: ARG002
        """Return the weighted mean of the heads' losses at the answer positions."""
        final_MD, students = self._run(batch)
        teacher_MD = mean_rows(final_MD, self.head_VD)
        losses = [cross_entropy_to_mean_rows(x_MD, teacher_MD, self.head_VD) for x_MD in students]
        return decayed_mean(losses, self.decay), len(final_MD)

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """Return how often the target's token is among each head's k best, on held-out answers."""
        count, head_VD = AgreementCount(), self.head_VD
        for batch in self.held_out_batches():
            final_MD, students = self._run(batch)
            wanted_M = (final_MD @ head_VD.T).argmax(-1)
            for head, x_MD in enumerate(students, 1):
                count.add(head, x_MD.to(head_VD.dtype) @ head_VD.T, wanted_M)
        return count.figures("agreement_head")

    def drafter_without_tree(self) -> HeadDrafter:
        """See `TreeTask`."""
        model = deepcopy(self.module).float().eval().requires_grad_(requires_grad=False)
        return self.drafter(model, (), num_layers=self.target.config.num_layers)

    def save_and_load(self, paths: Sequence[TreePath], folder: Path, **origin: Any) -> HeadDrafter:
        """See `TreeTask`."""
        save_tree_heads(self.kind, self.module, paths, folder, **origin)
        return self.load(folder, self.target, dtype=torch.float32)

    def ranks(self, drafter: HeadDrafter, index: int) -> Ranks:
        """See `TreeTask`."""
        row, features = self.states.conversations[index], row_features(self.states, [index], drafter.feature_layers)
        return drafter.level_ranks(row.ids, start=len(row.prompt), features_TE=features)

    def _run(self, batch: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Return the target's states and each head's, [M, D], at answer positions with `num_heads` positions before."""
        rows, final_BTD = make_batch(self.states, batch), self.states.padded(self.states.layers[-1], batch)
        places_M = (rows.predicting & (rows.positions >= self.recipe.num_heads)).flatten().nonzero().flatten()
        with torch.autocast(self.states.device.type, dtype=torch.bfloat16):
            students = self.head_states(rows, final_BTD, places_M)
        return final_BTD.flatten(0, 1)[places_M], students


def initial_medusa(recipe: MedusaRecipe, target: Decoder, kept_ids: Tensor) -> MedusaModel:
    """Return float32 heads that start as the target's `lm_head`."""
    medusa = MedusaModel(target.config.hidden_size, MedusaConfig.model_validate(recipe))
    medusa.share(target, kept_ids)
    return medusa


class MedusaTask(HeadsTask[MedusaRecipe]):
    """Trains a `MedusaModel`; as in the paper head k weighs 0.8^k, but the paper learns the text's token."""

    module: MedusaModel
    initial, drafter = staticmethod(initial_medusa), MedusaDrafter
    kind, load = MedusaFolderConfig, staticmethod(load_medusa)
    decay = 0.8

    def head_states(self, rows: Batch, final_BTD: Tensor, places_M: Tensor) -> list[Tensor]:  # noqa: ARG002
        """Return each head's states; head k reads the target's state k positions before."""
        final = final_BTD.flatten(0, 1)
        return [head(final[places_M - shift].float()) for shift, head in enumerate(self.module.heads, 1)]


def initial_hydra(recipe: HydraRecipe, target: Decoder, kept_ids: Tensor) -> HydraModel:
    """Return float32 heads that start as the target's `lm_head`.

    The prefix layer is a copy of the target's last layer with the strongest neurons of its MLP (largest product of the
    norms of their three weight vectors). Its output projections start at zero, so that it changes nothing yet.
    """
    torch.manual_seed(recipe.optimisation.seed)
    hydra = HydraModel(target.config, HydraConfig.model_validate(recipe))
    source = target.layers[-1]
    weights = {name: weight.float() for name, weight in source.state_dict().items()}
    gate, up = weights["gate_up.weight"].norm(dim=1).chunk(2)
    strength = gate * up * weights["down.weight"].norm(dim=0)
    kept = strength.topk(recipe.prefix_width).indices.sort().values
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


class HydraTask(HeadsTask[HydraRecipe]):
    """Trains a `HydraModel`."""

    module: HydraModel
    initial, drafter = staticmethod(initial_hydra), HydraDrafter
    kind, load = HydraFolderConfig, staticmethod(load_hydra)
    decay = 1.0

    @classmethod
    def require_fit(cls, recipe: HydraRecipe, target: Decoder) -> None:
        """Raise `TrainingError` also if the prefix layer is wider than the target's layers."""
        super().require_fit(recipe, target)
        if recipe.prefix_width > target.config.intermediate_size:
            msg = f"prefix_width {recipe.prefix_width}: the target's layers have {target.config.intermediate_size}"
            raise TrainingError(msg)

    def head_states(self, rows: Batch, final_BTD: Tensor, places_M: Tensor) -> list[Tensor]:
        """Return each head's states, computed from the prefix layer's state and the tokens after it."""
        prefix_BTD = self.module.read_prefix(final_BTD.float(), positions=rows.positions, mask=rows.mask)
        prefix, ids, num_heads = prefix_BTD.flatten(0, 1), rows.ids.flatten(), self.recipe.num_heads
        tokens = [self.module.embed(ids[places_M - shift]) for shift in range(num_heads)]
        return [self.module(prefix[places_M - head], tokens[:head]) for head in range(1, num_heads + 1)]


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

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:  # noqa: ARG002
        """Return the mean soft cross-entropy over the exits."""
        final_MD = answer_states(self.states, batch, self.states.layers[-1])
        teacher = final_MD @ self.head_VD.T
        losses = []
        for layer, adapter in self.adapters.items():
            logits_MV = self._logits(adapter, answer_states(self.states, batch, layer), self.head_VD)
            losses.append(soft_cross_entropy(logits_MV, teacher))
        return torch.stack(losses).mean(), len(final_MD)

    def evaluate(self) -> Mapping[str, float]:
        """Return the held-out coverage, one figure per layer and k."""
        return self.coverage(self.adapters, self.kept_ids).figures("coverage_layer")

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Save and reload the adapters, and measure the exits' coverage with and without them."""
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
        """Count how often the target's token is among an exit's k best kept tokens, on held-out answers."""
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
        """Return an exit's logits [M, V] from the states after its layer, computed in bfloat16."""
        with torch.autocast(x_MD.device.type, dtype=torch.bfloat16):
            norm = self.target.final_norm
            return rms_norm(adapter(x_MD).to(norm.dtype), norm, self.target.config.norm_eps) @ head_VD.T
