"""Early exits: the best ids after a middle layer, over a reduced vocabulary, and the folders of trained adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Array, as_tensor, as_tensors, inference, is_tensor, log_shares, numpy_type, wide
from runtime.models.vocabulary import OutputRows, ranked_ids
from runtime.storage.weight_folder import EmbeddedTarget, FolderConfig, Layers, Width, load_trained, save_trained

if TYPE_CHECKING:
    import torch

    from runtime.backends.backend import Backend
    from runtime.models.decoder import Decoder
    from runtime.target.exit_adapter import ExitAdapter


_Rows = tuple[tuple[int, ...], ...]
Adapter = Callable[[Array], Array]
"""From hidden states after a middle layer to states for the final norm and `lm_head`."""


class EarlyExit:
    """The exits of one target. Without a trained adapter, a layer is read by the final norm and `lm_head` alone."""

    def __init__(self, head_VD: Array, exits: ExitHeads | None, backend: Backend) -> None:
        self._backend, self._weights = backend, {} if exits is None else exits.adapters
        self._adapters: dict[int, Adapter] = {}
        if exits is None:
            ids = np.arange(len(head_VD))
            self._output = OutputRows(as_tensor(ids).to(head_VD.device) if is_tensor(head_VD) else ids, head_VD)
        else:  # a copy of the rows: gathering them for every message would take longer than the product
            self._output = OutputRows(exits.kept_ids, head_VD[exits.kept_ids], head_VD)
        self._output.run_on(backend)

    @property
    def trained_layers(self) -> tuple[int, ...]:
        """Layers that have adapters, ascending."""
        return tuple(sorted(self._weights))

    def open(self, layer: int) -> Adapter | None:
        """Return the adapter of a layer, created on first use; None without one."""
        if layer not in self._adapters and layer in self._weights:
            self._adapters[layer] = self._backend.adapter(self._weights[layer])
        return self._adapters.get(layer)

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Add the tokens of this prompt to the adapters' vocabulary."""
        self._output.add_prompt_tokens(prompt)

    @inference
    def read(self, x_BTD: Array, layer: int, num_candidates: int) -> tuple[_Rows, tuple[tuple[float, ...], ...]]:
        """Return the best target ids of every row of states [1, T, D] after a layer, and their log-probabilities."""
        if (adapter := self.open(layer)) is not None:
            x_BTD = adapter(x_BTD)
        logits_TV = wide(self._output.logits(self._backend.normalise(x_BTD))[0])
        ids_TK = ranked_ids(logits_TV, num_candidates)
        ids, log_probs = self._output.ids[ids_TK].tolist(), log_shares(logits_TV, ids_TK).tolist()
        return tuple(map(tuple, ids)), tuple(map(tuple, log_probs))


class ExitHeads(NamedTuple):
    """Trained exits: adapters by layer (modules, or their arrays by name), and the target ids of their vocabulary."""

    adapters: Mapping[int, Any]
    kept_ids: Array


class ExitFolderConfig(FolderConfig):
    """`config.json` of exit adapters."""

    layer_fields = ("exit_layers",)
    # affine maps are near the identity: int8 with one scale per row would lose the entries off the diagonal
    unquantized = (".affine.weight",)

    speculators_model_type: Literal["mirrorsd_exits"] = "mirrorsd_exits"
    exit_layers: Layers
    width: Width


def save_exits(
    exits: ExitHeads, folder: Path, *, target: Decoder, target_name: str, metadata: Mapping[str, Any]
) -> None:
    """Write exit adapters, all of one width and trained for this target; see `save_trained`."""
    layers = tuple(sorted(exits.adapters))
    save_trained(
        folder,
        ExitFolderConfig,
        {f"{layer}.{name}": weight for layer in layers for name, weight in exits.adapters[layer].named_parameters()},
        target=target,
        target_name=target_name,
        kept_ids=exits.kept_ids,
        fields={
            "exit_layers": layers,
            "width": exits.adapters[layers[0]].up.out_features,
            "metadata": dict(metadata),
        },
    )


def load_stored_exits(folder: Path, target: EmbeddedTarget, dtype: np.dtype[Any]) -> ExitHeads:
    """Return a folder's exit adapters as arrays in `dtype`; errors as in `load_trained`."""
    stored = load_trained(folder, ExitFolderConfig, target)
    size, width, layers = target.config.hidden_size, stored.config.width, stored.config.exit_layers
    shapes = {
        "affine.weight": (size, size),
        "affine.bias": (size,),
        "norm": (size,),
        "up.weight": (width, size),
        "down.weight": (size, width),
    }
    all_shapes = {f"{layer}.{name}": shape for layer in layers for name, shape in shapes.items()}
    found = stored.unpacked(all_shapes, dtype)
    adapters = {layer: {name: found[f"{layer}.{name}"] for name in shapes} for layer in layers}
    return ExitHeads(adapters, stored.kept_ids)


def load_exits(folder: Path, target: Decoder, *, dtype: torch.dtype) -> ExitHeads:
    """Return a folder's exit adapters as modules in `dtype` on the target's device; errors as in `load_trained`."""
    import torch

    from runtime.target.exit_adapter import ExitAdapter

    stored, device = load_stored_exits(folder, target, numpy_type(dtype)), target.embedding.weight.device

    def adapter_of(arrays: dict[str, NDArray[Any]]) -> ExitAdapter:
        with torch.device("meta"):
            adapter = ExitAdapter(target.config.hidden_size, len(arrays["up.weight"]), target.config.norm_eps)
        adapter.load_state_dict(as_tensors(arrays), assign=True)
        return adapter.to(device).eval().requires_grad_(requires_grad=False)

    adapters = {layer: adapter_of(arrays) for layer, arrays in stored.adapters.items()}
    return ExitHeads(adapters=adapters, kept_ids=as_tensor(stored.kept_ids).to(device))
