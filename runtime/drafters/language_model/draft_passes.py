"""The passes of a draft model, as a torch module or on a back end, and the proposals of tokens from its hidden states.

With `exit_features` the draft also reads hidden states of the target, of the *previous* position, which are added
before one of its middle layers. With `streams` (`runtime.drafters.streams`) it also guesses the tokens after the next
one, which does not change its proposals. Shapes: legend of `runtime.models.decoder`; E exit-feature layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decoding.errors import LaneError, ModelError
from decoding.messages import NUM_SAMPLED_FROM, Candidates, Window
from runtime.arrays import Array, concatenated, inference, zeros
from runtime.backends.backend import Backend, Head, Preparation, segments_between
from runtime.backends.kv_memory import SequenceCache
from runtime.models.vocabulary import OutputRows, best_places, ranked_ids
from runtime.storage.stored_decoder import EmbeddingRows, StoredDecoder
from runtime.verification.rules import GREEDY, Sampling, draw_from, truncated, uniform
from runtime.wire.channel import to_block

if TYPE_CHECKING:  # this module must not import pydantic, see `replayed_text`
    from runtime.drafters.language_model.folder import StreamConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftConfig:
    """Sizes of a draft model beyond those of its target's config.

    `source_layers` are the target's layers, from 1, that initialise its layers; `vocab_size` is that of its reduced
    output. The hidden states after the target's layers `exit_features` are added after the draft's layer
    `feature_layer`; `streams` begin at that layer or above.
    """

    source_layers: tuple[int, ...]
    vocab_size: int
    exit_features: tuple[int, ...] = ()
    feature_layer: int = 0
    streams: "StreamConfig | None" = None

    def __post_init__(self) -> None:
        if not self.source_layers:
            raise ModelError("source_layers is empty: a draft needs at least one layer")
        if not 0 <= self.feature_layer < len(self.source_layers):
            raise ModelError(f"feature_layer {self.feature_layer} is outside 0..{len(self.source_layers) - 1}")
        lowest, highest = max(1, self.feature_layer), len(self.source_layers) - 1
        if self.streams is not None and not lowest <= self.streams.start_layer <= highest:
            raise ModelError(f"start_layer {self.streams.start_layer} of the streams is outside {lowest}..{highest}")


class DraftStates(NamedTuple):
    """Hidden states of rows, both [.., D]: those that streams start from, and the last ones, normalised for logits."""

    entering_TD: Array
    hidden_TD: Array

    def at(self, rows: Any) -> "DraftStates":
        """Return some of the rows."""
        return DraftStates(self.entering_TD[rows], self.hidden_TD[rows])


class DraftPasses:
    """The passes of a decoder with few layers, a reduced head, and optional exit features."""

    config: DraftConfig
    decoder: Any
    """The weights, in torch or numpy, with their `config`."""
    output: OutputRows
    """The output rows: kept rows of the target's `lm_head`, and those of the prompt."""
    streams: Callable[..., Array] | None
    """See `StreamModel.forward`; None without streams."""
    backend: Backend | None = None
    """The back end that computes; None for the torch module itself."""
    fuse: Any
    """The matrix of what features add, an `EmbeddingRows` or a torch module; None for a draft that reads none."""
    _product: Head | None = None

    def fused(self, features_BTE: Array) -> Array:
        """Return what features [..., E * D] add to hidden states, [..., D]."""
        return (self._product or self.fuse)(features_BTE)

    def run_on(self, backend: Backend) -> None:
        """Compute layers and logits on a back end; streams are dropped if its KV cache cannot be read."""
        self.backend = backend
        if not backend.has_readable_cache:
            self.streams, self.config = None, replace(self.config, streams=None)
        self.output.run_on(backend)
        if self.fuse is not None:
            self._product = backend.product(self.fuse.weight)

    def on_a_backend(self) -> Backend:
        """Return the back end, creating torch's if there is none yet."""
        if self.backend is None:
            from runtime.backends.eager import EagerBackend

            self.run_on(EagerBackend(self.decoder))
        assert self.backend is not None, "a draft that stayed without a back end"
        return self.backend

    def of_positions_before(self, features_TE: Array | None, count: int) -> Array | None:
        """Return the features that the first `count` tokens read: of the position before each, zeros for the first."""
        if features_TE is None:
            return None
        features_TE = self.on_a_backend().array(to_block(features_TE[: count - 1]))
        return concatenated([zeros(features_TE, 1, features_TE.shape[-1]), features_TE])

    def run(
        self, ids_BT: Any, *, positions: Any, mask: Any = None, cache: Any = None, added_BTD: Array | None = None
    ) -> DraftStates:
        """Run all layers over rows; states are [B, T, D].

        `positions`, `mask` and `cache` are as in `Decoder.run_layers`. `added_BTD` is what features of the previous
        positions add (`fused`).
        """
        has_halves = self.streams is not None or added_BTD is not None
        half, where = self.half_layer if has_halves else 0, {"positions": positions, "mask": mask, "cache": cache}
        entering = self.lower_half(ids_BT, half, added_BTD=added_BTD, **where)
        x_BTD = self._runner.run_layers(entering, half, self.decoder.config.num_layers, **where)
        return DraftStates(entering, self._runner.normalise(x_BTD))

    def step(
        self, ids_T: Any, *, positions: Any, cache: SequenceCache, features_TE: Array | None = None
    ) -> DraftStates:
        """Run the next rows of a text and move the cache's cursor behind them; states are [T, D].

        `features_TE` [T, E * D] are those of `normalise_features` for the previous positions; zeros mean no features.
        """
        added_BTD = None if features_TE is None else self.fused(features_TE[None])
        states = self.run(ids_T[None], positions=positions, cache=cache, added_BTD=added_BTD)
        cache.advance(len(ids_T))
        return DraftStates(states.entering_TD[0], states.hidden_TD[0])

    def guess(self, entering_BRD: Array, *, positions: Any, cache: Any, num_streams: int | None = None) -> Any:
        """Return what the first streams (None: all) guess after the rows' proposals: indices into `output`, [B, R, J].

        `entering_BRD` are the rows' `DraftStates.entering_TD`, `positions` their positions, `cache` as in
        `StreamModel.forward`.
        """
        if self.streams is None or num_streams == 0:
            return np.zeros((*entering_BRD.shape[:-1], 0), np.int64)
        hidden_BRJD = self.streams(entering_BRD, positions=positions, cache=cache, num_streams=num_streams)
        return best_places(self.output.logits(hidden_BRJD))

    def plan(
        self, *, num_slots: int, num_prompt: int, rows: tuple[int, ...], with_features: bool, **more: Any
    ) -> Preparation:
        """Return the plan for its back end: passes over all layers, and passes cut where features are added."""
        layers = self.decoder.config.num_layers
        whole = cut = segments_between(layers)
        if with_features:
            cut = segments_between(self.config.feature_layer, layers)
        return Preparation(
            num_slots=num_slots,
            num_prompt=num_prompt,
            rows=rows,
            segments=tuple({*whole, *cut}),
            prompt_segments=cut if num_prompt > 1 else (),
            **more,
        )

    @property
    def num_streams(self) -> int:
        """The number of streams on its back end: 0 if that does not expose its KV cache."""
        return 0 if self.config.streams is None else self.config.streams.num_streams

    def require_streams(self, count: int) -> None:
        """Raise `LaneError` if a schedule needs more streams than there are."""
        if count > self.num_streams:
            raise LaneError(f"draft_streams is {count}: this draft has {self.num_streams or 'none'}")

    @property
    def half_layer(self) -> int:
        """The number of layers below the one where streams begin or, without streams, features are added."""
        return self.config.streams.start_layer if self.config.streams else self.config.feature_layer

    def lower_half(self, ids_BT: Any, half: int, *, added_BTD: Array | None = None, **where: Any) -> Array:
        """Embed rows and run the first `half` layers; return the hidden states after them, [B, T, D]."""
        runner, done = self._runner, 0
        # a target may have padding tokens that a draft's embedding lacks; a wrong embedding only costs acceptance
        x_BTD = runner.embedding(ids_BT.clip(max=self.decoder.config.vocab_size - 1))
        if added_BTD is not None:
            done = self.config.feature_layer
            x_BTD = runner.run_layers(x_BTD, 0, done, **where) + added_BTD
        return runner.run_layers(x_BTD, done, half, **where) if done < half else x_BTD

    @property
    def _runner(self) -> Any:
        return self.decoder if self.backend is None else self.backend


class StoredDraft(DraftPasses):
    """A draft model without torch: numpy weights, which only a back end computes with."""

    streams = None

    def __init__(
        self, decoder: StoredDecoder, config: DraftConfig, output: OutputRows, *, fuse: EmbeddingRows | None = None
    ) -> None:
        self.decoder, self.config, self.output, self.fuse = decoder, config, output, fuse


class Proposal(NamedTuple):
    """The next token that a row proposes, with alternatives and the distribution it was sampled from, if wanted."""

    token: int
    alternatives: tuple[int, ...] = ()
    distribution: Candidates | None = None


def as_window(proposals: Sequence[Proposal]) -> Window:
    """Return the proposals of successive positions as a window."""
    return Window(
        tuple(proposal.token for proposal in proposals),
        tuple(proposal.alternatives for proposal in proposals if proposal.alternatives),
        tuple(proposal.distribution for proposal in proposals if proposal.distribution is not None),
    )


def num_verified(ids: Sequence[int], proposals: Sequence[Proposal]) -> int:
    """Return how many rows, from the first on, were fed the token that the row before proposes."""
    count = 1
    while count < len(ids) and ids[count] == proposals[count - 1].token:
        count += 1
    return count


class Proposer:
    """Proposes the next tokens of rows; `ids` are the current target ids of `output`."""

    def __init__(self, output: OutputRows, *, num_alternatives: int = 0, sampling: Sampling = GREEDY) -> None:
        self.ids: list[int] = output.ids.tolist()
        self._output, self._num_alternatives, self._sampling = output, num_alternatives, sampling

    @inference
    def __call__(self, hidden_RD: Array, positions: Sequence[int]) -> list[Proposal]:
        """Return the next tokens of rows with hidden states [R, D]; `positions` are those of the proposed tokens."""
        logits_RV, ids = self._output.logits(hidden_RD), self.ids
        if self._num_alternatives:
            best = ranked_ids(logits_RV, self._num_alternatives).tolist()
            alternatives = [tuple(ids[index] for index in row) for row in best]
        else:
            alternatives = [(ids[index],) for index in best_places(logits_RV).tolist()]
        if (replay := self._sampling.replay) is not None:
            return [
                Proposal(
                    replay.draft_token(position, ranked[0]),
                    replay.draft_alternatives(position, ranked) if self._num_alternatives else (),
                )
                for ranked, position in zip(alternatives, positions, strict=True)
            ]
        if self._sampling.drafts_are_sampled:
            return [self._sample(*row) for row in zip(logits_RV, alternatives, positions, strict=True)]
        return [Proposal(row[0], row if self._num_alternatives else ()) for row in alternatives]

    def _sample(self, logits_V: Array, alternatives: tuple[int, ...], position: int) -> Proposal:
        best = truncated(logits_V, self._sampling.temperature, NUM_SAMPLED_FROM)
        candidates = best._replace(tokens=tuple(self.ids[index] for index in best.tokens))
        token = draw_from(candidates, uniform(self._sampling.seed, "draft", position))
        return Proposal(token, alternatives if self._num_alternatives else (), candidates)
