"""torch as it comes: the reference, and the fallback where nothing is compiled."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from runtime.backends.backend import Head, Plan
from runtime.drafters.language_model.branch_cache import BranchCache
from runtime.models.decoder import Decoder, RowPlaces
from runtime.models.kv_cache import KVCache


class EagerBackend:
    """Implements `runtime.backends.backend.Backend` by a decoder's own code, layer by layer."""

    has_open_keys: bool = True
    self_test_chunks: tuple[tuple[int, ...], ...] = ((1,) * 12, (2, 3, 4, 3), (5, 7), (12,))

    def __init__(self, decoder: Decoder) -> None:
        self.config, self._decoder = decoder.config, decoder
        self.dtype, self.device = decoder.embedding.weight.dtype, decoder.embedding.weight.device
        # of the rows that have passed some layers: working it out again can cost as much as a layer does
        self._under_way: tuple[tuple[Tensor, Tensor | None, Any], RowPlaces] | None = None

    def new_text(self) -> KVCache:
        """Room for a text."""
        return KVCache(self.config, 0, dtype=self.dtype, device=str(self.device))

    def new_branches(self, num_branches: int) -> BranchCache:
        """Room for branches of a text."""
        return BranchCache(self.config, num_branches, 0, dtype=self.dtype, device=str(self.device))

    def prepare(self, plan: Plan) -> None:
        """Nothing: shapes are what they are."""

    def embedding(self, ids: Tensor) -> Tensor:
        """Hidden states that enter the first layer."""
        return self._decoder.embedding(ids)  # type: ignore[no-any-return]

    def run_layers(
        self, x_BTD: Tensor, start: int, stop: int, *, positions: Tensor, mask: Tensor | None = None, cache: Any
    ) -> Tensor:
        """Hidden states after layer `stop`."""
        places = None if cache is None else self._places(x_BTD, start, positions, mask, cache)
        x_BTD = self._decoder.run_layers(x_BTD, start, stop, positions=positions, mask=mask, cache=cache, places=places)
        if stop == self.config.num_layers:
            self._under_way = None  # it would keep the text's memory taken
        return x_BTD

    def _places(self, x_BTD: Tensor, start: int, positions: Tensor, mask: Tensor | None, cache: Any) -> RowPlaces:
        """Where rows are: what was worked out for their first layers, if these are the rows under way."""
        known, given = self._under_way, (positions, mask, cache)
        if start and known is not None and all(one is other for one, other in zip(known[0], given, strict=True)):
            return known[1]
        places = self._decoder.row_places(x_BTD, positions=positions, mask=mask, cache=cache)
        self._under_way = given, places
        return places

    def normalise(self, x: Tensor) -> Tensor:
        """The final norm alone."""
        return self._decoder.normalise(x)

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Final norm and output head."""
        return self._decoder.logits(x_BTD)

    def head(self, rows_VD: Tensor) -> Head | None:  # noqa: ARG002
        """None: torch computes them where they are."""
        return None

    def on_host(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """They are there."""
        return tensors

    def wait(self) -> None:
        """Nothing is under way."""
