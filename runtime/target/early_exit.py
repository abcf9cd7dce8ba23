"""Reading a middle layer: an exit's best ids and their log-probabilities, under a reduced vocabulary.

Shapes: legend of `runtime.models.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.arrays import Array, as_tensor, inference, is_tensor, log_shares, wide
from runtime.models.ranking import ranked_ids
from runtime.models.vocabulary import OutputRows

if TYPE_CHECKING:
    from runtime.backends.backend import Backend
    from runtime.target.exit_folder import ExitHeads, StoredExits

Rows = tuple[tuple[int, ...], ...]
Adapter = Callable[[Array], Array]
"""States of a middle layer -> states for the final norm and head."""


class EarlyExit:
    """The exits of one target. A layer without a trained adapter is read with the final norm and head alone."""

    def __init__(
        self,
        normalise: Callable[[Array], Array],
        output: OutputRows,
        weights: Mapping[int, Any],
        backend: Backend,
    ) -> None:
        """Args: the final norm; rows of the head; weights of trained adapters by layer; the back end."""
        self._normalise, self._output, self._weights, self._backend = normalise, output, weights, backend
        self._adapters: dict[int, Adapter] = {}
        output.run_on(backend)

    def open(self, layer: int) -> Adapter | None:
        """Return the adapter of a layer, if there is one; it is made on first use."""
        if layer not in self._adapters and layer in self._weights:
            self._adapters[layer] = self._backend.adapter(self._weights[layer])
        return self._adapters.get(layer)

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Add the tokens of this prompt to the adapters' vocabulary."""
        self._output.add_prompt_tokens(prompt)

    @inference
    def read(self, x_BTD: Array, layer: int, num_candidates: int) -> tuple[Rows, tuple[tuple[float, ...], ...]]:
        """Return the best target ids of every row of the only sequence, best first, and their log-probabilities.

        Args:
            x_BTD: hidden states after `layer`, [1, T, D].
            layer: the exit layer, counted from 1.
            num_candidates: ids per row.
        """
        if (adapter := self.open(layer)) is not None:
            x_BTD = adapter(x_BTD)
        logits_TV = wide(self._output.logits(self._normalise(x_BTD))[0])
        ids_TK = ranked_ids(logits_TV, num_candidates)
        ids, log_probs = self._backend.on_host(self._output.ids[ids_TK], log_shares(logits_TV, ids_TK))
        return tuple(map(tuple, ids.tolist())), tuple(map(tuple, log_probs.tolist()))


def exit_of(head_VD: Array, exits: ExitHeads | StoredExits | None, backend: Backend) -> EarlyExit:
    """Return the exits of a target.

    Args:
        head_VD: rows of its output head.
        exits: adapters that were trained for it, if there are any.
        backend: the back end that computes them.
    """
    if exits is None:
        ids = as_tensor(np.arange(len(head_VD))).to(head_VD.device) if is_tensor(head_VD) else np.arange(len(head_VD))
        return EarlyExit(backend.normalise, OutputRows(ids, head_VD), {}, backend)
    # copied rows: gathering them for every message would cost more than the product
    output = OutputRows(exits.kept_ids, head_VD[exits.kept_ids], head_VD)
    return EarlyExit(backend.normalise, output, exits.adapters, backend)
