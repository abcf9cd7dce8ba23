"""EAGLE heads: one decoder layer that goes on from the target's features instead of from tokens alone.

- EAGLE-1 (arXiv 2401.15077; its weights serve EAGLE-2, 2406.16858, too): the feature is what the target's output head
  reads; token embedding and feature are fused by one matrix, and the layer has no norm at its input.
- EAGLE-3 (arXiv 2503.01840): the feature is made of the states after several layers; embedding and feature are
  normalised apart, attention reads both side by side, and what the head reads is normalised once more.
Shapes: legend of `runtime.models.decoder`, plus R rows in whatever order, I what attention reads, E the target's
features.
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
    """A decoder layer without a norm before attention; its matrices take as many rows as there are."""

    linear = nn.Linear

    def __init__(self, config: ModelConfig, input_size: int) -> None:
        plain = replace(config, attention_bias=False, attention_out_bias=False, mlp_bias=False, qk_norm=False)
        super().__init__(plain, input_size)
        del self.input_norm


class EagleHead(nn.Module, ABC):
    """The base of both kinds; `embedding` and `lm_head` are the target's rows, `output` maps ids of the head."""

    output: OutputRows

    def __init__(self, target_config: ModelConfig, vocab_size: int, input_size: int) -> None:
        super().__init__()
        self.config = config = replace(target_config, num_layers=1, tie_embeddings=False)
        self.embedding = new_embedding(config.vocab_size, config.hidden_size)
        self.layer = EagleLayer(config, input_size)
        self.lm_head = nn.Linear(config.hidden_size, vocab_size, bias=False)
        self.rotary = Rotary(config, config.max_position)

    @abstractmethod
    def input_feature(self, features: Tensor) -> Tensor:
        """Return the feature to feed [..., D] for the target's normalised features [..., E]."""

    @abstractmethod
    def read(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Return what attention reads [..., I] and the residual, of token embeddings and features before, [..., D]."""

    @abstractmethod
    def output_state(self, feature: Tensor) -> Tensor:
        """Return the input of `lm_head` for a feature, [..., D]."""

    def forward(
        self, ids_BT: Tensor, feature_BTD: Tensor, *, positions: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """Return features [B, T, D] of the rows' own positions, from tokens and the features of the positions before.

        `positions` are rotary ones [T]; `mask` is additive [T, S] (None: `LayerKeys.sight`); no cache: this call alone.
        """
        attended, residual = self.read(self.embedding(ids_BT), feature_BTD)
        keys = WithinCall() if cache is None else cache
        sight = keys.sight(mask, ids_BT.shape[1], self.config.num_queries_per_kv)
        projected = self.layer.project(attended, self.rotary(positions, attended.dtype))
        return self.layer.finish(residual, keys.attend(0, *projected, sight))

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """Use the target's embedding and the kept rows of its head, frozen, in their own dtype."""
        head_VD, num_positions = target.lm_head.weight.detach(), len(target.rotary.cos_PH)
        self.use_rows(target.embedding.weight, head_VD[kept_ids], kept_ids, num_positions=num_positions)
        self.output = OutputRows(kept_ids, head_VD[kept_ids], head_VD)

    def use_rows(self, embedding_VD: Tensor, head_KD: Tensor, kept_ids: Tensor, *, num_positions: int) -> None:
        """Use an embedding and rows of a head, frozen; prompts add no further rows."""
        self.embedding.weight = nn.Parameter(embedding_VD, requires_grad=False)
        self.lm_head.weight = nn.Parameter(head_KD, requires_grad=False)
        self.output = OutputRows(kept_ids, head_KD.detach())
        self.rotary = Rotary(self.config, num_positions)


class Eagle1(EagleHead):
    """EAGLE-1; `target_norm` is the target's final norm, so that its features may travel at unit scale."""

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
        """Return embedding and feature fused."""
        x = self.fuse(torch.cat([embedded, feature], dim=-1))
        return x, x

    def output_state(self, feature: Tensor) -> Tensor:
        """Return the feature itself."""
        return feature


class Eagle3(EagleHead):
    """EAGLE-3 over the states after `num_taps` layers of the target."""

    def __init__(self, target_config: ModelConfig, vocab_size: int, num_taps: int) -> None:
        size = target_config.hidden_size
        super().__init__(target_config, vocab_size, 2 * size)
        self.fuse = nn.Linear(num_taps * size, size, bias=False)
        self.token_norm = nn.Parameter(torch.ones(size))
        self.feature_norm = nn.Parameter(torch.ones(size))
        self.output_norm = nn.Parameter(torch.ones(size))

    def input_feature(self, features: Tensor) -> Tensor:
        """Return all taps fused."""
        return self.fuse(features)  # type: ignore[no-any-return]

    def read(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Return embedding and feature side by side, each normalised; the feature is the residual."""
        parts = [self._normalise(embedded, self.token_norm), self._normalise(feature, self.feature_norm)]
        return torch.cat(parts, dim=-1), feature

    def output_state(self, feature: Tensor) -> Tensor:
        """Return the feature after its own norm."""
        return self._normalise(feature, self.output_norm)

    def _normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.to(x.dtype), self.config.norm_eps)
