"""What every back end of torch leaves to torch, wherever its tensors are."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from runtime.backends.backend import Head
from runtime.drafters.language_model.draft_passes import normalise_features
from runtime.models.config import ModelConfig
from runtime.wire.blocks import to_tensor
from runtime.wire.channel import Block


class ByTorch:
    """The part of `runtime.backends.backend.Backend` that is about heads, drafts and exits."""

    config: ModelConfig
    dtype: Any
    device: Any

    def head(self, rows_VD: Tensor) -> Head | None:  # noqa: ARG002
        """None: torch computes them where they are."""
        return None

    def prompt_head(self, rows_ED: Tensor) -> Head | None:  # noqa: ARG002
        """None: torch computes them too."""
        return None

    def product(self, weight_OI: Tensor) -> Head | None:  # noqa: ARG002
        """None: torch computes them where they are."""
        return None

    def adapter(self, weights: Any) -> Head:
        """The module itself."""
        adapter: Head = weights
        return adapter

    def features(self, hidden_TED: Tensor, *, is_raw: bool) -> Tensor:
        """Hidden states as they are sent to a draft."""
        return hidden_TED.flatten(-2) if is_raw else normalise_features(hidden_TED, self.config.norm_eps)

    def array(self, block: Block) -> Tensor:
        """Hidden states that came from another lane."""
        return to_tensor(block).to(self.device, self.dtype)
