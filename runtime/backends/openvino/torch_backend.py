"""Compiled graphs for who computes with torch all the same: recording, training, and heads next to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runtime.arrays import FLOAT32, as_array, as_tensor
from runtime.backends.backend import Head
from runtime.backends.lane_device import Device, Dtype
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.backends.openvino.graphs.head_graphs import CompiledAdapter
from runtime.models.decoder import Decoder
from runtime.storage.stored_decoder import stored_form
from runtime.wire.blocks import to_tensor
from runtime.wire.channel import Block


class OpenVinoBackend(CompiledDecoder):
    """A `CompiledDecoder` that takes and gives tensors; what it computes is the same to the last bit."""

    device = torch.device("cpu")

    def __init__(self, decoder: Decoder, *, device: Device, form: Dtype, num_threads: int) -> None:
        """Take the decoder's weights, away from it where they are rounded; else as `CompiledDecoder`."""
        stored = stored_form(decoder)
        stored.layers[:] = [_Borrowed(own, layer) for own, layer in zip(stored.layers, decoder.layers, strict=True)]
        super().__init__(stored, device=device, form=form, num_threads=num_threads)
        self.dtype = torch.float32 if form == "float32" else torch.bfloat16
        self._states = torch.float32 if self._arithmetic == FLOAT32 else torch.bfloat16

    def embedding(self, ids: Any) -> Any:
        """Hidden states that enter the first layer."""
        return self._tensor(super().embedding(_array(ids)))

    def run_layers(self, x_BTD: Any, start: int, stop: int, *, positions: Any, mask: Any = None, cache: Any) -> Any:
        """Hidden states after layer `stop`."""
        if start == stop:
            return x_BTD
        x = _array(x_BTD)
        own = None if mask is None else _array(mask)
        found = super().run_layers(x, start, stop, positions=_array(positions), mask=own, cache=cache)
        return self._tensor(found)

    def normalise(self, x: Any) -> Any:
        """The final norm alone."""
        return self._tensor(super().normalise(_array(x)))

    def logits(self, x_BTD: Any) -> Any:
        """Final norm and output head."""
        return as_tensor(super().logits(_array(x_BTD)))

    def head(self, rows_VD: Any) -> Head:
        """A head of other rows."""
        return _of_tensors(super().head(as_array(rows_VD)))

    def prompt_head(self, rows_ED: Any) -> Head:
        """A head of few rows."""
        return _of_tensors(super().prompt_head(as_array(rows_ED)))

    def product(self, weight_OI: Any) -> Head:
        """Products with a matrix that is not rounded."""
        return _of_tensors(super().product(as_array(weight_OI)))

    def adapter(self, weights: Any) -> Head:
        """An exit's adapter of a module."""
        arrays = {name: as_array(weight) for name, weight in weights.named_parameters()}
        return _of_tensors(CompiledAdapter(arrays, super().product, self.config.norm_eps))

    def features(self, hidden_TED: Any, *, is_raw: bool) -> Any:
        """Hidden states as they are sent to a draft."""
        return as_tensor(super().features(_array(hidden_TED), is_raw=is_raw))

    def array(self, block: Block) -> Any:
        """Hidden states that came from another lane."""
        return to_tensor(block).to(self._states)

    def _tensor(self, x: Any) -> Tensor:
        return as_tensor(x).to(self._states)


class _Borrowed(dict[str, Any]):
    """Parameters of a layer; a matrix that is taken away is on the meta device from now on."""

    def __init__(self, arrays: dict[str, Any], layer: nn.Module) -> None:
        super().__init__(arrays)
        self._layer = layer

    def pop(self, name: str) -> Any:  # type: ignore[override]
        owner, _, own = name.rpartition(".")
        linear = self._layer.get_submodule(owner)
        setattr(linear, own, nn.Parameter(getattr(linear, own).detach().to("meta"), requires_grad=False))
        return super().pop(name)


def _array(x: Any) -> Any:
    """Numbers as compiled graphs take them: what is no integer as float32."""
    if not isinstance(x, Tensor):
        return x
    return as_array(x.float() if x.is_floating_point() else x)


def _of_tensors(head: Head) -> Head:
    return lambda x: as_tensor(head(_array(x)))
