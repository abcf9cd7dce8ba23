"""What Medusa and Hydra heads share: agreement with the target, the tree that grows from it, and the folder.

Shapes: legend of `training.data.batch`, plus K heads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from decoding.progress import ReportCount
from decoding.tree_shape import Path as TreePath
from runtime.trees.static_tree import Ranks
from training.judging.judgement import Judgement
from training.recipe import HydraRecipe, MedusaRecipe
from training.tasks.distillation import cross_entropy_to_mean_rows, decayed_mean, mean_rows
from training.tasks.eagle_rows import row_features
from training.tasks.lookahead import AgreementCount
from training.tasks.states_task import Metadata, StatesTask
from training.tasks.tree_growth import TreeAnswers, grown_on

R = TypeVar("R", bound=MedusaRecipe | HydraRecipe)


class RankedHeads(Protocol):
    """Heads that rank a text's tokens; see `runtime.drafters.medusa.drafter`."""

    @property
    def paths(self) -> tuple[TreePath, ...]:
        """Nodes of their tree in their order."""
        ...

    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """Ranks of the text's tokens by place and head, [N, K]."""
        ...


class HeadKind(NamedTuple):
    """What drafts with heads of a kind, how their folder is written and read, and how losses are weighted."""

    drafter: Callable[..., RankedHeads]
    save: Callable[..., None]
    load: Callable[..., RankedHeads]
    decay: float
    """Weight of each head's loss, relative to the head before."""


class HeadsTask(StatesTask[R]):
    """Trains heads that read the target's last state and propose a static tree."""

    kind: ClassVar[HeadKind]
    _head_VD: Tensor
    """Kept rows of the target's output head, bfloat16."""

    @abstractmethod
    def rows(self, batch: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The target's states at the predicting positions [M, D], and every head's states there, [M, D] each."""

    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:  # noqa: ARG002
        """Weighted mean of the heads' losses at the answer positions."""
        final_MD, students = self.rows(batch)
        teacher_MD = mean_rows(final_MD, self._head_VD)
        losses = [cross_entropy_to_mean_rows(x_MD, teacher_MD, self._head_VD) for x_MD in students]
        return decayed_mean(losses, self.kind.decay), len(final_MD)

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """Held-out agreement with the target: by head, how often its token is among the k best."""
        count = AgreementCount(self.recipe.num_heads)
        for batch in self.held_out_batches():
            final_MD, students = self.rows(batch)
            logits = [x_MD.to(self._head_VD.dtype) @ self._head_VD.T for x_MD in students]
            count.add(logits, (final_MD @ self._head_VD.T).argmax(-1))
        return count.shares

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Grow the tree on training answers, save, load again, and simulate rounds on the held-out greedy answers."""
        target = self.states.target
        answers = TreeAnswers(self, grown_on(self.num_conversations), progress)
        model = deepcopy(self.module).float().eval().requires_grad_(requires_grad=False)
        drafter = self.kind.drafter(model, (), num_layers=target.config.num_layers)
        paths = answers.grow(self._ranks(drafter), self.recipe.num_nodes)
        self.kind.save(model, paths, folder, target=target, target_name=target_name, metadata=metadata)
        loaded = self.kind.load(folder, target, dtype=torch.float32)
        return answers.judge(self._ranks(loaded), loaded.paths, self.recipe.tree_sizes)

    def _ranks(self, heads: RankedHeads) -> Callable[[int], Ranks]:
        layers = (self.states.target.config.num_layers,)

        def ranks(index: int) -> Ranks:
            row, features = self.states.conversations[index], row_features(self.states, [index], layers)
            return heads.level_ranks(row.ids, start=len(row.prompt), features_TE=features)

        return ranks
