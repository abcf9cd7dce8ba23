"""Compiled graphs for callers that use torch: recording, and heads of the target."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from runtime.arrays import FLOAT32, as_array, as_tensor
from runtime.backends.backend import Head
from runtime.backends.lane_device import Device, Dtype
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.models.decoder import Decoder
from runtime.storage.stored_decoder import stored_form
from runtime.wire.channel import Block, to_tensor

Method = Callable[..., Any]


def _array(x: Any) -> Any:
    """Return numbers as compiled graphs take them: what is no integer as float32."""
    if not isinstance(x, Tensor):
        return x
    return as_array(x.float() if x.is_floating_point() else x)


def _gives_tensors(method: Method) -> Any:
    def run(self: Any, *given: Any, **named: Any) -> Tensor:
        return as_tensor(method(self, *map(_array, given), **{name: _array(one) for name, one in named.items()}))

    return run


def _gives_states(method: Method) -> Any:
    numbers = _gives_tensors(method)
    return lambda self, *given, **named: numbers(self, *given, **named).to(self.state_type)


def _gives_heads(method: Method) -> Any:
    def run(self: Any, weights: Tensor | nn.Module) -> Head:
        if isinstance(weights, nn.Module):
            head = method(self, {name: as_array(one) for name, one in weights.named_parameters()})
        else:
            head = method(self, as_array(weights))
        return lambda x: as_tensor(head(_array(x)))

    return run


class OpenVinoBackend(CompiledDecoder):
    """A `CompiledDecoder` that takes and gives tensors; what it computes is the same to the last bit."""

    device = torch.device("cpu")

    def __init__(self, decoder: Decoder, *, device: Device, form: Dtype, num_threads: int) -> None:
        """Take the decoder's weights, removed from it where they are quantised; else as `CompiledDecoder`."""
        stored = stored_form(decoder)
        stored.layers[:] = [_Borrowed(own, layer) for own, layer in zip(stored.layers, decoder.layers, strict=True)]
        super().__init__(stored, device=device, form=form, num_threads=num_threads)
        self.dtype = torch.float32 if form == "float32" else torch.bfloat16
        self.state_type = torch.float32 if self._arithmetic == FLOAT32 else torch.bfloat16

    embedding = _gives_states(CompiledDecoder.embedding)
    run_layers = _gives_states(CompiledDecoder.run_layers)
    normalise = _gives_states(CompiledDecoder.normalise)
    logits = _gives_tensors(CompiledDecoder.logits)
    features = _gives_tensors(CompiledDecoder.features)
    head = _gives_heads(CompiledDecoder.head)
    prompt_head = _gives_heads(CompiledDecoder.prompt_head)
    product = _gives_heads(CompiledDecoder.product)
    adapter = _gives_heads(CompiledDecoder.adapter)

    def array(self, block: Block) -> Any:
        """Return hidden states that came from another lane as a tensor."""
        return to_tensor(block).to(self.state_type)


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
