"""EAGLE heads: one decoder layer that reads tokens and the target's features of the positions before them.

- EAGLE-1 (arXiv 2401.15077; EAGLE-2, 2406.16858, uses the same weights): the feature is what the target's `lm_head`
  reads. One matrix maps token embedding and feature to the layer's input, which is not normalised.
- EAGLE-3 (arXiv 2503.01840): one matrix maps the hidden states after several layers to the feature. Embedding and
  feature are normalised separately and concatenated for attention; the layer's output is normalised for `lm_head`.

Shapes: legend of `runtime.models.decoder`; I width of attention's input, E width of the target's features.
"""

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor, nn

from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Layer, Rotary, new_embedding, rms_norm
from runtime.models.kv_cache import KVCache
from runtime.models.row_invariance import WithinCall
from runtime.models.vocabulary import OutputRows


class EagleLayer(Layer):
    """A decoder layer without a norm before attention; its matrices do not pad rows for batch invariance."""

    linear = nn.Linear

    def __init__(self, config: ModelConfig, input_size: int) -> None:
        plain = replace(config, attention_bias=False, attention_out_bias=False, mlp_bias=False, qk_norm=False)
        super().__init__(plain, input_size)
        del self.input_norm


class EagleHead(nn.Module, ABC):
    """The base of both kinds; `embedding` and `lm_head` are rows of the target's, `output` has their target ids."""

    output: OutputRows

    def __init__(self, target_config: ModelConfig, vocab_size: int, input_size: int) -> None:
        super().__init__()
        self.config = config = replace(target_config, num_layers=1, tie_embeddings=False)
        self.embedding = new_embedding(config.vocab_size, config.hidden_size)
        self.layer = EagleLayer(config, input_size)
        self.lm_head = nn.Linear(config.hidden_size, vocab_size, bias=False)
        self.rotary = Rotary(config)

    @abstractmethod
    def input_feature(self, features: Tensor) -> Tensor:
        """Return the feature to feed [..., D], from the target's normalised features [..., E]."""

    @abstractmethod
    def read(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Return attention's input [..., I] and the residual [..., D], from token embeddings and features [..., D]."""

    @abstractmethod
    def output_state(self, feature: Tensor) -> Tensor:
        """Return the input of `lm_head` for a feature, [..., D]."""

    def forward(
        self, ids_BT: Tensor, feature_BTD: Tensor, *, positions: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """Return features [B, T, D] of the rows' positions, from tokens and the features of the positions before.

        `positions` [T] are for the rotation; `mask` is additive [T, S] (None: see `LayerKeys.sight`); without a cache,
        rows see only the rows of this call.
        """
        attended, residual = self.read(self.embedding(ids_BT), feature_BTD)
        keys = WithinCall() if cache is None else cache
        sight = keys.sight(mask, ids_BT.shape[1], self.config.num_queries_per_kv)
        projected = self.layer.project(attended, self.rotary(positions, attended.dtype))
        return self.layer.finish(residual, keys.attend(0, *projected, sight))

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """Use the target's embedding and the kept rows of its `lm_head`, frozen and in their dtype."""
        head_VD = target.lm_head.weight.detach()
        self.use_rows(target.embedding.weight, head_VD[kept_ids], kept_ids)
        self.output = OutputRows(kept_ids, head_VD[kept_ids], head_VD)

    def use_rows(self, embedding_VD: Tensor, head_KD: Tensor, kept_ids: Tensor) -> None:
        """Use an embedding and output rows, frozen; prompts add no further rows."""
        self.embedding.weight = nn.Parameter(embedding_VD, requires_grad=False)
        self.lm_head.weight = nn.Parameter(head_KD, requires_grad=False)
        self.output = OutputRows(kept_ids, head_KD.detach())
        self.rotary = Rotary(self.config)


class Eagle1(EagleHead):
    """EAGLE-1; `target_norm` is the target's final norm, whose weights its features lack."""

    target_norm: Tensor

    def __init__(self, target_config: ModelConfig, vocab_size: int) -> None:
        size = target_config.hidden_size
        super().__init__(target_config, vocab_size, size)
        self.fuse = nn.Linear(2 * size, size, bias=False)
        self.register_buffer("target_norm", torch.ones(size), persistent=False)

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """See `EagleHead`; the target's final norm is used too."""
        super().share(target, kept_ids)
        self.target_norm = target.final_norm.detach()

    def input_feature(self, features: Tensor) -> Tensor:
        """Return the input of the target's `lm_head`."""
        return features * self.target_norm.to(features.dtype)

    def read(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """See `EagleHead`; the residual is attention's input."""
        x = self.fuse(torch.cat([embedded, feature], dim=-1))
        return x, x

    def output_state(self, feature: Tensor) -> Tensor:
        """Return the feature itself."""
        return feature


class Eagle3(EagleHead):
    """EAGLE-3, which reads the hidden states after `num_taps` layers of the target."""

    def __init__(self, target_config: ModelConfig, vocab_size: int, num_taps: int) -> None:
        size = target_config.hidden_size
        super().__init__(target_config, vocab_size, 2 * size)
        self.fuse = nn.Linear(num_taps * size, size, bias=False)
        self.token_norm = nn.Parameter(torch.ones(size))
        self.feature_norm = nn.Parameter(torch.ones(size))
        self.output_norm = nn.Parameter(torch.ones(size))

    def input_feature(self, features: Tensor) -> Tensor:
        """See `EagleHead`."""
        return self.fuse(features)  # type: ignore[no-any-return]

    def read(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """See `EagleHead`; the residual is the feature."""
        parts = [self._normalise(embedded, self.token_norm), self._normalise(feature, self.feature_norm)]
        return torch.cat(parts, dim=-1), feature

    def output_state(self, feature: Tensor) -> Tensor:
        """See `EagleHead`; normalises the feature."""
        return self._normalise(feature, self.output_norm)

    def _normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.to(x.dtype), self.config.norm_eps)
