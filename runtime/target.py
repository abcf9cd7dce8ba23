"""The target of one sequence: prefill, verification, and the two halves around an early exit.

The target decides what is committed, so its cache is rolled back by its own verdicts: behind every verdict it
holds the committed text but the last token, which is the first row of the next verification.

Shapes: legend of `runtime.decoder`; T = len(window) + 1 rows, E tapped layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.messages import NO_WINDOW, ExitSignal, Verdict, Window
from runtime.decoder import Decoder
from runtime.draft_model import normalise_features
from runtime.early_exit import EarlyExit
from runtime.exit_folder import ExitHeads
from runtime.kv_cache import KVCache
from runtime.masks import CausalMasks, prefill_pieces
from runtime.verification import GREEDY, Sampling, decide


class _Started(NamedTuple):
    """Rows on their way through the layers."""

    window: Window
    x_BTD: Tensor
    layers_done: int
    positions: Tensor
    mask: Tensor | None


class TargetModel:
    """A decoder, its exits, and the state of the sequence it is working on."""

    def __init__(self, decoder: Decoder, heads: ExitHeads | None = None) -> None:
        self.decoder = decoder
        self.early_exit = EarlyExit(decoder, heads)
        self.dtype = decoder.embedding.weight.dtype
        self.cache = KVCache(decoder.config, 0, dtype=self.dtype)
        self._masks = CausalMasks(0, self.dtype)
        self._last_token = 0
        self._sampling = GREEDY
        self._feature_layers: tuple[int, ...] = ()
        self._taps: list[Tensor] = []
        self._started: _Started | None = None

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return self.decoder.config.num_layers

    @torch.inference_mode()
    def prefill(
        self,
        prompt: Sequence[int],
        *,
        capacity: int,
        sampling: Sampling = GREEDY,
        feature_layers: tuple[int, ...] = (),
    ) -> Tensor | None:
        """Start a sequence: read all prompt tokens but the last.

        Args:
            prompt: at least one token id.
            capacity: slots that the whole sequence and a window behind it need.
            sampling: how this sequence's tokens are chosen.
            feature_layers: layers whose hidden states `verify`, `prefix` and this reply; ascending.

        Returns:
            Features of all positions but the last, [len(prompt) - 1, E * D]; None without `feature_layers`.
        """
        if self.cache.capacity < capacity:
            self.cache = KVCache(self.decoder.config, capacity, dtype=self.dtype)
            self._masks = CausalMasks(capacity, self.dtype)
        self.cache.roll_back(0)
        self._sampling, self._feature_layers, self._started = sampling, feature_layers, None
        self._last_token = prompt[-1]
        width = len(feature_layers) * self.decoder.config.hidden_size
        features = [torch.empty(0, width, dtype=self.dtype)]
        for start, stop, mask in prefill_pieces(len(prompt) - 1, self.dtype):
            self._advance(self._start(prompt[start:stop], mask), self.num_layers)
            self.cache.advance(stop - start)
            if feature_layers:
                features.append(self._features())
        return torch.cat(features) if feature_layers else None

    @torch.inference_mode()
    def verify(self, window: Window) -> Verdict:
        """All layers over the last committed token and the window; features of the rows that stand."""
        verdict = self._finish(self._start_window(window))
        if not self._feature_layers:
            return verdict
        return verdict._replace(features=self._features()[: verdict.num_accepted + 1])

    @torch.inference_mode()
    def prefix(self, window: Window, exit_layer: int, num_candidates: int) -> ExitSignal:
        """The layers up to `exit_layer` and the exit's candidates; features of all rows."""
        started = self._advance(self._start_window(window), exit_layer)
        self._started = started
        candidates, log_probs = self.early_exit.read(started.x_BTD, exit_layer, num_candidates)
        return ExitSignal(candidates, log_probs, self._features() if self._feature_layers else None)

    @torch.inference_mode()
    def suffix(self) -> Verdict:
        """The remaining layers of the rows given to `prefix`."""
        assert self._started is not None, "suffix without a prefix"
        started, self._started = self._started, None
        return self._finish(started)

    def _start_window(self, window: Window) -> _Started:
        ids = (self._last_token, *window.tokens)
        return self._start(ids, self._masks.behind(self.cache.cursor, len(ids)), window)

    def _start(self, ids: Sequence[int], mask: Tensor | None, window: Window = NO_WINDOW) -> _Started:
        context = self.cache.cursor
        self._taps = []
        return _Started(
            window=window,
            x_BTD=self.decoder.embedding(torch.tensor([ids])),
            layers_done=0,
            positions=torch.arange(context, context + len(ids)),
            mask=mask,
        )

    def _advance(self, started: _Started, stop: int) -> _Started:
        """Run on to layer `stop`, keeping what tapped layers say on the way."""
        x_BTD, done = started.x_BTD, started.layers_done
        taps = [layer for layer in self._feature_layers if done < layer <= stop]
        for layer in taps:
            x_BTD, done = self._run(x_BTD, done, layer, started), layer
            self._taps.append(x_BTD[0])
        return started._replace(x_BTD=self._run(x_BTD, done, stop, started), layers_done=stop)

    def _run(self, x_BTD: Tensor, start: int, stop: int, rows: _Started) -> Tensor:
        return self.decoder.run_layers(x_BTD, start, stop, positions=rows.positions, mask=rows.mask, cache=self.cache)

    def _finish(self, started: _Started) -> Verdict:
        x_BTD = self._advance(started, self.num_layers).x_BTD
        verdict = decide(self.decoder.logits(x_BTD)[0], started.window, self._sampling, self.cache.cursor + 1)
        self.cache.advance(verdict.num_accepted + 1)
        self._last_token = verdict.next_token
        return verdict

    def _features(self) -> Tensor:
        """What the draft may read of the rows under way, [T, E * D]."""
        return normalise_features(torch.stack(self._taps, dim=1), self.decoder.config.norm_eps)
