"""The draft language model: a few of the target's layers, its embeddings, a reduced output vocabulary.

With `exit_features` the draft also reads hidden states that the target has at an early exit. They are fused
before one of its middle layers and belong to the *previous* position; drafted positions have none, so the same
weights serve with features and without. With `streams` (`runtime.drafters.streams.model`) it also guesses tokens
after the next one; they change nothing of what it proposes itself.

Shapes: legend of `runtime.models.decoder`, plus E exit-feature layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from decoding.errors import ModelError
from runtime.backends.backend import Backend, Text
from runtime.drafters.streams.model import StreamConfig, StreamModel
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, rms_norm
from runtime.models.row_invariance import Linear
from runtime.models.vocabulary import OutputRows, all_ids


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftConfig:
    """What distinguishes a draft from its target.

    Attributes:
        source_layers: layers of the target (counted from 1) that initialise the draft's.
        vocab_size: size of the reduced output vocabulary.
        exit_features: target layers whose output is fused; empty for a token-only draft.
        feature_layer: draft layers done before the features are added.
        streams: sizes of its streams, which begin where features are added or above; None without streams.
    """

    source_layers: tuple[int, ...]
    vocab_size: int
    exit_features: tuple[int, ...] = ()
    feature_layer: int = 0
    streams: StreamConfig | None = None

    def __post_init__(self) -> None:
        if not self.source_layers:
            raise ModelError("source_layers is empty: a draft needs at least one layer")
        if not 0 <= self.feature_layer < len(self.source_layers):
            raise ModelError(f"feature_layer {self.feature_layer} is outside 0..{len(self.source_layers) - 1}")
        lowest, highest = max(1, self.feature_layer), len(self.source_layers) - 1
        if self.streams is not None and not lowest <= self.streams.start_layer <= highest:
            raise ModelError(f"start_layer {self.streams.start_layer} of the streams is outside {lowest}..{highest}")


class DraftStates(NamedTuple):
    """Rows of a draft: what its streams start from, and what it proposes from; both [.., D]."""

    entering_TD: Tensor
    hidden_TD: Tensor

    def at(self, rows: Tensor | slice) -> DraftStates:
        """Some of the rows."""
        return DraftStates(self.entering_TD[rows], self.hidden_TD[rows])


class DraftModel(nn.Module):
    """A `Decoder` with few layers, a reduced head, and optional fusion of exit features.

    `embedding` and `lm_head` are the target's own rows and never trained; `kept_ids` maps draft ids to target ids.
    `output` proposes: by the same rows, and by those of a prompt once they are added.
    `streams` are there once `add_streams` was called.
    """

    kept_ids: Tensor

    def __init__(self, target_config: ModelConfig, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        shape = replace(target_config, num_layers=len(config.source_layers), tie_embeddings=False)
        self.decoder = Decoder(shape)
        self.decoder.lm_head = Linear(shape.hidden_size, config.vocab_size, bias=False)
        width = len(config.exit_features) * shape.hidden_size
        self.fuse = Linear(width, shape.hidden_size, bias=False) if width else None
        self.streams: StreamModel | None = None
        self.register_buffer("kept_ids", all_ids(config.vocab_size))
        self.output = OutputRows(self.kept_ids, self.decoder.lm_head.weight)
        self._backend: Backend | None = None

    def run_on(self, backend: Backend) -> None:
        """Have layers and proposals computed there from now on; where keys are not open, streams are forgotten."""
        self._backend = backend
        if not backend.has_open_keys:
            self.streams, self.config = None, replace(self.config, streams=None)
        self.to(backend.device)
        self.output.move_to(backend.device)
        self.output.run_on(backend.head)

    @property
    def backend(self) -> Backend | None:
        """What `run_on` was given; None computes by torch."""
        return self._backend

    @property
    def _runner(self) -> Backend | Decoder:
        return self.decoder if self._backend is None else self._backend

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """Use the target's embedding and the kept rows of its output head, frozen."""
        weight = target.embedding.weight
        self.kept_ids = kept_ids
        self.decoder.embedding.weight = nn.Parameter(weight, requires_grad=False)
        self.decoder.lm_head.weight = nn.Parameter(
            target.lm_head.weight[kept_ids].to(weight.dtype), requires_grad=False
        )
        self.output = OutputRows(kept_ids, self.decoder.lm_head.weight.detach(), target.lm_head.weight.detach())

    def forward(
        self,
        ids_BT: Tensor,
        *,
        positions: Tensor,
        mask: Tensor | None,
        cache: Any = None,
        features_BTE: Tensor | None = None,
    ) -> Tensor:
        """Normalised hidden states [B, T, D]; `decoder.lm_head` turns them into reduced logits.

        Args:
            ids_BT: target token ids.
            positions: rotary positions [T] or [B, T].
            mask: additive mask, as in `Decoder.run_layers`.
            cache: where keys and values go, or None.
            features_BTE: what `normalise_features` returned for the previous positions, zero where there are
                none, [B, T, E * D]. A row of zeros and no features at all are the same thing.
        """
        return self.run(ids_BT, positions=positions, mask=mask, cache=cache, features_BTE=features_BTE).hidden_TD

    def run(
        self,
        ids_BT: Tensor,
        *,
        positions: Tensor,
        mask: Tensor | None = None,
        cache: Any = None,
        features_BTE: Tensor | None = None,
    ) -> DraftStates:
        """`forward`, and what entered the upper half: both [B, T, D]; the upper half is all if nothing needs halves."""
        is_cut = self.streams is not None or (self.fuse is not None and features_BTE is not None)
        half = self.half_layer if is_cut else 0
        runner = self._runner
        if is_cut:
            entering = self.lower_half(ids_BT, positions=positions, mask=mask, cache=cache, features_BTE=features_BTE)
        else:
            entering = runner.embedding(ids_BT)
        x_BTD = runner.run_layers(
            entering, half, self.decoder.config.num_layers, positions=positions, mask=mask, cache=cache
        )
        return DraftStates(entering, runner.normalise(x_BTD))

    def step(self, ids_T: Tensor, *, positions: Tensor, cache: Text, features_TE: Tensor | None = None) -> DraftStates:
        """`run` of the next rows of one text [T, D] at the cache's cursor, which moves after them."""
        features_BTE = None if features_TE is None else features_TE[None]
        states = self.run(ids_T[None], positions=positions, cache=cache, features_BTE=features_BTE)
        cache.advance(len(ids_T))
        return DraftStates(states.entering_TD[0], states.hidden_TD[0])

    def guess(self, entering_BRD: Tensor, *, positions: Tensor, cache: Any, num_streams: int | None = None) -> Tensor:
        """What streams expect after the proposals of rows, as places in `output`, [B, R, J]; J is 0 without streams.

        Args:
            entering_BRD: the rows' `DraftStates.entering_TD`.
            positions: theirs, [R] or [B, R].
            cache: see `StreamModel.forward`.
            num_streams: the first so many streams; None is all.
        """
        if self.streams is None or num_streams == 0:
            return torch.zeros(*entering_BRD.shape[:-1], 0, dtype=torch.long, device=entering_BRD.device)
        hidden_BRJD = self.streams(entering_BRD, positions=positions, cache=cache, num_streams=num_streams)
        best: Tensor = self.output.logits(hidden_BRJD).float().argmax(dim=-1)
        return best

    @property
    def half_layer(self) -> int:
        """Layers that `lower_half` runs: streams begin after them, or features are added."""
        return self.config.streams.start_layer if self.config.streams else self.config.feature_layer

    def lower_half(
        self,
        ids_BT: Tensor,
        *,
        positions: Tensor,
        mask: Tensor | None,
        cache: Any = None,
        features_BTE: Tensor | None = None,
    ) -> Tensor:
        """The first half of `forward`: hidden states that enter layer `half_layer` + 1, [B, T, D]."""
        decoder, done = self._runner, 0
        x_BTD = decoder.embedding(ids_BT)
        if self.fuse is not None and features_BTE is not None:
            done = self.config.feature_layer
            x_BTD = decoder.run_layers(x_BTD, 0, done, positions=positions, mask=mask, cache=cache)
            x_BTD = x_BTD + self.fuse(features_BTE)
        if done < self.half_layer:
            x_BTD = decoder.run_layers(x_BTD, done, self.half_layer, positions=positions, mask=mask, cache=cache)
        return x_BTD

    def add_streams(self) -> StreamModel:
        """Streams of the sizes in `config`, untrained, next to the weights that the layers have now."""
        assert self.config.streams is not None, "a draft without sizes of streams"
        self.streams = StreamModel(self.decoder, self.config.streams)
        return self.streams


def normalise_features(hidden_TED: Tensor, eps: float) -> Tensor:
    """Exit features as the channel carries them: each layer's hidden state at unit scale, [T, E * D]."""
    unit = hidden_TED.new_ones(hidden_TED.shape[-1])
    return rms_norm(hidden_TED, unit, eps).flatten(-2)
