"""The base of all tasks: conversations with cached states, some of them held out; each ends in a drafter folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from decoding.progress import ReportCount
from runtime.models.decoder import Decoder
from training.data.states import TargetStates
from training.judging.drafter_acceptance import HeldOutAcceptance, TopKShares
from training.recipe import TrainingRecipe

_EVALUATION_BATCH = 8


Metadata = Mapping[str, Any]
"""Origin of trained weights: recipe, target and data."""
R = TypeVar("R", bound=TrainingRecipe)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Held-out figures of a finished run, taken from the drafter folder on disk; no acceptance without greedy answers.

    `extends` is the folder of the drafter that this one is, with something added; None for a new one.
    """

    acceptance: tuple[HeldOutAcceptance, ...] = ()
    exit_coverage: TopKShares = field(default_factory=dict)
    untrained_exit_coverage: TopKShares = field(default_factory=dict)
    extends: Path | None = None


class StatesTask(ABC, Generic[R]):
    """Something to learn on cached states of the frozen target, on its device: a loss, and a score.

    `module` is trained: its parameters that require gradients. Conversations after `num_conversations` are held out.
    """

    module: nn.Module

    def __init__(self, recipe: R, kept_ids: Tensor, states: TargetStates) -> None:
        self.recipe, self.target, self.states = recipe, states.target, states
        self.kept_ids = kept_ids.to(states.device)
        self.num_conversations = len(states.conversations) - recipe.num_held_out

    @classmethod
    def require_fit(cls, recipe: R, target: Decoder) -> None:
        """Raise `TrainingError`, which names the field, or `ModelError` for a recipe that does not fit the target."""
        recipe.require_layers(target.config.num_layers)

    def conversation_length(self, index: int) -> int:
        """Tokens of the conversation: batches are made of neighbours in length."""
        return len(self.states.conversations[index].ids)

    def rate_share(self, name: str) -> float:  # noqa: ARG002
        """The share of the learning rate at which a parameter of `module` learns."""
        return 1.0

    @property
    def held_out(self) -> range:
        """Indices of the conversations that are never trained on."""
        return range(self.num_conversations, len(self.states.conversations))

    def held_out_batches(self) -> Iterator[Sequence[int]]:
        """Yield the held-out indices in batches of a size that fits in memory."""
        for start in range(0, len(self.held_out), _EVALUATION_BATCH):
            yield self.held_out[start : start + _EVALUATION_BATCH]

    def greedy(self, indices: Sequence[int]) -> list[int]:
        """Return the conversations whose answers are greedy."""
        return [index for index in indices if self.states.conversations[index].temperature == 0]

    @abstractmethod
    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Return the mean loss of conversations given by index, and the answer tokens it was taken over."""

    @abstractmethod
    def evaluate(self) -> Mapping[str, float]:
        """Return figures on held-out answers."""

    @abstractmethod
    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Write the drafter folder, and judge what is in it; `progress` counts passes over held-out answers."""
