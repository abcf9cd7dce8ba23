"""A draft language model of arrays: its layers, proposals and fusion of features are computed by graphs."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from runtime.arrays import Array
from runtime.backends.backend import Backend, Head
from runtime.drafters.language_model.draft_passes import DraftConfig, DraftPasses
from runtime.models.vocabulary import OutputRows
from runtime.storage.stored_decoder import StoredDecoder


class StoredDraft(DraftPasses):
    """Passes over what `run_on` makes of the weights."""

    streams = None

    def __init__(
        self, decoder: StoredDecoder, config: DraftConfig, output: OutputRows, *, fuse_DE: NDArray[Any] | None = None
    ) -> None:
        """Args: its weights; its sizes; what it proposes by; what fuses features, if it reads any."""
        self.decoder, self.config, self.output, self._fuse_DE = decoder, config, output, fuse_DE
        self.backend = None
        self._product: Head | None = None

    def fused(self, features_BTE: Array) -> Array:
        """See `DraftPasses`."""
        assert self._product is not None, "a draft that reads no features, or was not opened"
        return self._product(features_BTE)

    def run_on(self, backend: Backend) -> None:
        """See `DraftPasses`."""
        self.backend = backend
        self.output.run_on(backend)
        if self._fuse_DE is not None:
            self._product = backend.product(self._fuse_DE)
