"""Speculative streams: extra rows in a decoder's top layers that guess the tokens after the next one.

Stream j of row t starts as that row's state after layer `start_layer` plus a trained embedding of j, sees the keys that
row t sees and streams 1..j of its own row, and guesses the token j places after the one that row t predicts (arXiv
2402.11131, section 3). Low-rank changes of the matrices (LoRA) apply to stream rows alone, so the decoder's own output
cannot change (the paper's lossless mode). Where the paper leaves it open: stream j has the rotary position j places
after its row. Shapes: legend of `runtime.models.decoder`, plus R rows that have streams, J streams of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from decoding.errors import ModelError
from runtime.drafters.language_model.draft_passes import StreamConfig
from runtime.models.attention import LayerKeys, WithinCall
from runtime.models.decoder import Decoder, Layer, causal_mask, rms_norm
from runtime.models.row_invariance import Linear

_MATRICES = ("qkv", "out", "gate_up", "down")
_NORMS = ("input_norm", "mlp_norm", "q_norm", "k_norm")

Keys = Callable[[int], tuple[Tensor, Tensor]]
"""Keys and values of the decoder's own rows, [B, K, S, H] each, by the layer's index."""


class LowRank(nn.Module):
    """A frozen linear layer plus a trained low-rank one that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.narrow = Linear(base.in_features, rank, bias=False)
        self.widen = Linear(rank, base.out_features, bias=False)
        with torch.no_grad():
            self.widen.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """[..., out] of [..., in]."""
        return self.base(x) + self.widen(self.narrow(x))  # type: ignore[no-any-return]


class StreamModel(nn.Module):
    """The streams of a decoder, whose own weights stay frozen; raises `ModelError` if no layer is above them."""

    def __init__(self, decoder: Decoder, config: StreamConfig) -> None:
        super().__init__()
        shape = decoder.config
        if not 1 <= config.start_layer < shape.num_layers:
            raise ModelError(f"start_layer {config.start_layer} is outside 1..{shape.num_layers - 1}")
        self.config, self._shape = config, shape
        self.embedding = nn.Parameter(torch.zeros(config.num_streams, shape.hidden_size))
        # hidden states are large, and a trained weight moves by little more than the learning rate a step
        self._scale = math.sqrt(shape.hidden_size)
        above = range(config.start_layer, shape.num_layers)
        self.layers = nn.ModuleList(_changed(cast("Layer", decoder.layers[index]), config.rank) for index in above)
        self.final_norm, self.rotary = decoder.final_norm, decoder.rotary

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that are not the decoder's own, by name."""
        own = ("embedding", ".narrow.weight", ".widen.weight")
        return {name: weight for name, weight in self.named_parameters() if name.endswith(own)}

    def forward(
        self,
        x_BRD: Tensor,
        *,
        positions: Any,
        cache: LayerKeys,
        mask: Tensor | None = None,
        num_streams: int | None = None,
    ) -> Tensor:
        """Return normalised states of the first streams (None: all), [B, R, J, D]; the decoder's head reads them.

        `x_BRD` are the rows' states after `start_layer`, `positions` [R] or [B, R]. `cache` is what the decoder's own
        rows left: a text, for the streams of one row at a time, which use the slots from its cursor on; or `Borrowed`.
        `mask` is `stream_mask`'s, [R * J, S + R * J] or with leading [B, 1]; None: see `LayerKeys.sight`.
        """
        num_streams, positions = num_streams or self.config.num_streams, torch.as_tensor(positions)
        embedding_JD = (self.embedding[:num_streams] * self._scale).to(x_BRD.dtype)
        x_BTD = (x_BRD.unsqueeze(-2) + embedding_JD).flatten(-3, -2)
        ahead = torch.arange(1, num_streams + 1, device=positions.device)
        # nothing can be committed after the last position, so what is guessed for it does not matter
        last = len(self.rotary.cos_PH) - 1
        rotary = self.rotary((positions.unsqueeze(-1) + ahead).clamp(max=last).flatten(-2), x_BTD.dtype)
        sight = cache.sight(mask, x_BTD.shape[1], self._shape.num_queries_per_kv)
        for index, layer in enumerate(self.layers, self.config.start_layer):
            x_BTD = layer(x_BTD, rotary, sight, cache, index)
        x_BTD = rms_norm(x_BTD, self.final_norm, self._shape.norm_eps)
        return x_BTD.view(*x_BRD.shape[:-1], num_streams, -1)


def stream_mask(visible_RS: Tensor, num_streams: int) -> Tensor:
    """Return the mask of streams from that of their rows: additive [.., R, S] -> [.., R * J, S + R * J]."""
    stream_T = torch.arange(visible_RS.shape[-2] * num_streams, device=visible_RS.device)
    row_T = stream_T // num_streams
    is_hidden_TT = (row_T != row_T[:, None]) | (stream_T > stream_T[:, None])
    own_TT = visible_RS.new_zeros(is_hidden_TT.shape).masked_fill_(is_hidden_TT, -math.inf)
    own = own_TT.expand(*visible_RS.shape[:-2], -1, -1)
    return torch.cat([visible_RS.repeat_interleave(num_streams, dim=-2), own], dim=-1)


def run_along(decoder: Decoder, x_BTD: Tensor, start: int) -> tuple[Tensor, Keys]:
    """The layers above `start` over the states of whole texts: those in the end [B, T, D], and the keys of each."""
    recorder = _Recorder()
    width = x_BTD.shape[1]
    mask = causal_mask(width, x_BTD.dtype).to(x_BTD.device)
    positions = torch.arange(width, device=x_BTD.device)
    x_BTD = decoder.run_layers(x_BTD, start, decoder.config.num_layers, positions=positions, mask=mask, cache=recorder)
    return x_BTD, recorder.by_layer.__getitem__


class Borrowed(LayerKeys):
    """A cache of this call only: keys of stream rows follow those of the decoder."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's rows and then these."""
        keys, values = self._keys(layer)
        return torch.cat([keys, k_BKTH], dim=2), torch.cat([values, v_BKTH], dim=2)


class _Recorder(WithinCall):
    """A cache that records one call's keys and values, of any number of sequences."""

    def __init__(self) -> None:
        self.by_layer: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        self.by_layer[layer] = k_BKTH, v_BKTH
        return k_BKTH, v_BKTH


def _changed(base: Layer, rank: int) -> Layer:
    with torch.device("meta"):
        layer = Layer(base.config)
    for name in _NORMS:
        setattr(layer, name, getattr(base, name))
    for name in _MATRICES:
        setattr(layer, name, LowRank(getattr(base, name), rank))
    return layer
