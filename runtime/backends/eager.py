"""torch as it comes: the reference, and the fallback where nothing is compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from runtime.backends.backend import Head, Plan
from runtime.drafters.language_model.draft_passes import normalise_features
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, RowPlaces
from runtime.models.kv_cache import BranchCache, KVCache
from runtime.models.row_invariance import Linear
from runtime.wire.blocks import to_tensor
from runtime.wire.channel import Block


class ByTorch:
    """The part of `runtime.backends.backend.Backend` that back ends of torch leave to torch: heads and features."""

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


class _Places(NamedTuple):
    """Positions and mask of rows on the device, and what follows from them where the rows are of a text."""

    positions: Tensor
    mask: Tensor | None
    places: RowPlaces | None


class EagerBackend(ByTorch):
    """Implements `runtime.backends.backend.Backend` by a decoder's own code, layer by layer."""

    has_open_keys: bool = True
    self_test_chunks: tuple[tuple[int, ...], ...] = ((1,) * 12, (2, 3, 4, 3), (5, 7), (12,))

    def __init__(self, decoder: Decoder) -> None:
        self.config, self._decoder = decoder.config, decoder
        self.dtype, self.device = decoder.embedding.weight.dtype, decoder.embedding.weight.device
        # of the rows that have passed some layers: working it out again can cost as much as a layer does
        self._under_way: tuple[tuple[Any, Any, Any], _Places] | None = None

    @property
    def least_rows(self) -> int:
        """The most that a linear layer is filled up to."""
        layers = [module for module in self._decoder.modules() if isinstance(module, Linear)]
        return max((layer.row_multiple for layer in layers), default=1)

    def new_text(self) -> KVCache:
        """Room for a text."""
        return KVCache(self.config, 0, dtype=self.dtype, device=str(self.device))

    def new_branches(self, num_branches: int) -> BranchCache:
        """Room for branches of a text."""
        return BranchCache(self.config, num_branches, dtype=self.dtype, device=str(self.device))

    def prepare(self, plan: Plan) -> None:
        """Do nothing: shapes are what they are."""

    def embedding(self, ids: Any) -> Tensor:
        """Hidden states that enter the first layer."""
        return self._decoder.embedding(torch.as_tensor(ids, device=self.device))  # type: ignore[no-any-return]

    def run_layers(
        self, x_BTD: Tensor, start: int, stop: int, *, positions: Any, mask: Any = None, cache: Any
    ) -> Tensor:
        """Hidden states after layer `stop`."""
        places = self._places(x_BTD, start, positions, mask, cache)
        x_BTD = self._decoder.run_layers(
            x_BTD, start, stop, positions=places.positions, mask=places.mask, cache=cache, places=places.places
        )
        if stop == self.config.num_layers:
            self._under_way = None  # it would keep the text's memory taken
        return x_BTD

    def _places(self, x_BTD: Tensor, start: int, positions: Any, mask: Any, cache: Any) -> _Places:
        """Where rows are: what was worked out for their first layers, if these are the rows under way."""
        known, given = self._under_way, (positions, mask, cache)
        if start and known is not None and all(one is other for one, other in zip(known[0], given, strict=True)):
            return known[1]
        own_positions = torch.as_tensor(positions, device=self.device)
        own_mask = None if mask is None else torch.as_tensor(mask, device=self.device).to(self.dtype)
        places = None
        if cache is not None:
            places = self._decoder.row_places(x_BTD, positions=own_positions, mask=own_mask, cache=cache)
        found = _Places(own_positions, own_mask, places)
        self._under_way = given, found
        return found

    def normalise(self, x: Tensor) -> Tensor:
        """The final norm alone."""
        return self._decoder.normalise(x)

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Final norm and output head."""
        return self._decoder.logits(x_BTD)

    def on_host(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Tensors of the cores are there; a rank's GPU copies its own."""
        return tuple(tensor.cpu() for tensor in tensors)

    def wait(self) -> None:
        """Return at once: nothing is under way."""
