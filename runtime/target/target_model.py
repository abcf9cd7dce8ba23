"""The target decoding one sequence: prefill, verification, and the passes up to and after an early exit.

Each verdict rolls the KV cache back to all committed tokens but the last, which is the first row of the next
verification. Keys of a tree's accepted path are moved next to each other. Shapes: legend of `runtime.models.decoder`;
T = len(window) + 1 rows, E feature layers.
"""

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from decoding.errors import LaneError
from decoding.messages import NO_WINDOW, ExitSignal, Verdict, Window
from runtime.arrays import Array, concatenated, inference, is_on_host, on_host, stacked
from runtime.backends.backend import Backend, Preparation, prefill_pieces, segments_between, tree_rows
from runtime.backends.self_test import is_row_invariant
from runtime.instruction_set import described
from runtime.models.vocabulary import best_numbers
from runtime.target.early_exits import EarlyExit, ExitHeads
from runtime.verification.rules import GREEDY, Sampling, decide, decide_greedy
from runtime.wire.operations import RowInvariance, operation

if TYPE_CHECKING:
    from runtime.models.decoder import Decoder


class RowsUnderWay(NamedTuple):
    """The rows of a pass after `layers_done` layers. `mask` None is causal; `taps` are states after feature layers."""

    window: Window
    x_BTD: Array
    layers_done: int
    positions: NDArray[np.int64]
    mask: NDArray[np.float32] | None
    taps: tuple[Array, ...] = ()


class TargetModel:
    """A decoder, its exits, and the state of one sequence."""

    num_streams = 0
    """Rows of streams, which draft after a verdict; they need slots after those of the text."""

    def __init__(self, backend: Backend, early_exit: EarlyExit) -> None:
        self.backend, self.early_exit = backend, early_exit
        self.config, self.num_layers = backend.config, backend.config.num_layers
        self.cache: Any = self.backend.new_text()
        self._sampling = GREEDY
        self._feature_layers: tuple[int, ...] = ()
        self._waiting: RowsUnderWay | None = None

    @classmethod
    def of(cls, decoder: "Decoder", heads: ExitHeads | None = None, *, backend: Backend | None = None) -> Self:
        """Return a target with these weights and trained exits, on a back end (None: torch)."""
        from runtime.backends.eager import EagerBackend

        backend = backend or EagerBackend(decoder)
        return cls(backend, EarlyExit(decoder.lm_head.weight.detach(), heads, backend))

    def scratch_sequence(self, capacity: int) -> Self:
        """Return a copy with a new greedy sequence of `capacity` slots; this model's sequence is untouched."""
        other = copy(self)
        other.cache = self.backend.new_text()
        other.begin(0, capacity)
        return other

    def begin(self, last_token: int, capacity: int, *, sampling: Sampling = GREEDY) -> None:
        """Start a sequence of `capacity` slots with one committed token, which is not read yet."""
        self.cache.start(capacity + self.num_streams)
        self._last_token, self._sampling, self._waiting = last_token, sampling, None
        self._feature_layers, self._raw_features = (), False

    @operation
    @inference
    def lay_out_again(self) -> None:
        """Compute the next row of the sequence and discard it, on back ends where a change of memory layout takes time.

        A graph has the memory layout of its last call. After a call for another sequence, plain decoding's next pass
        took 13 to 17 % longer than those after it, in five demos of 29 November 2026.
        """
        if self.backend.has_layouts:
            self.advance(self.embed(NO_WINDOW), self.num_layers)

    @operation
    def check_rows(self) -> RowInvariance:
        """Test whether the lane is batch-invariant."""
        kind = getattr(self.backend.device, "type", "")  # of torch; compiled models have none
        limit = "" if kind == "cuda" else described(of_torch=kind == "cpu")
        return RowInvariance(is_row_invariant(self.backend), self.backend.least_rows, limit)

    @operation
    def prepare(
        self,
        *,
        num_prompt: int,
        num_slots: int,
        rows: Sequence[int],
        feature_layers: tuple[int, ...] = (),
        exit_layer: int | None = None,
        least_slots: int = 0,
    ) -> None:
        """Prepare the back end for a sequence that begins with `least_slots` filled slots and ends with `num_slots`.

        `rows` are the usual numbers of rows of its verifications; prefixes end at `exit_layer`; `feature_layers` as in
        `prefill`.
        """
        if exit_layer is not None:
            self.early_exit.open(exit_layer)
        self.backend.prepare(
            Preparation(
                num_slots=num_slots,
                num_prompt=num_prompt,
                rows=tuple(rows),
                segments=segments_between(*([] if exit_layer is None else [exit_layer]), self.num_layers),
                prompt_segments=segments_between(self.num_layers) if num_prompt > 1 else (),
                states=feature_layers,
                least_slots=least_slots,
            )
        )

    @operation
    @inference
    def prefill(
        self,
        prompt: Sequence[int],
        *,
        capacity: int,
        sampling: Sampling = GREEDY,
        feature_layers: tuple[int, ...] = (),
        raw_features: bool = False,
    ) -> Array | None:
        """Start a sequence and read all prompt tokens but the last. `capacity` slots include room for a window.

        Returns the features of these positions, [len(prompt) - 1, E * D]; None without `feature_layers`. Features are
        hidden states after these layers (ascending; the last layer's before the final norm), divided by their RMS
        unless `raw_features`. From then on `verify` and `prefix` return the features of their rows.
        """
        self.begin(prompt[-1], capacity, sampling=sampling)
        self._feature_layers, self._raw_features = feature_layers, raw_features
        self.add_prompt_tokens(prompt)
        features = []
        for start, stop in prefill_pieces(len(prompt) - 1):
            rows = self._embed(prompt[start:stop], np.arange(start, stop), None)
            rows = self.advance(rows, self.num_layers)
            self.cache.advance(stop - start)
            if feature_layers:
                features.append(self._features(rows))
        self.backend.wait()
        if not feature_layers:
            return None
        if not features:
            rows = self._embed((), np.arange(0), None)
            features.append(self._features(rows._replace(taps=(rows.x_BTD[0],) * len(feature_layers))))
        return concatenated(features)

    def add_prompt_tokens(self, prompt: Sequence[int]) -> None:
        """Add the tokens of this prompt to the vocabulary of exits."""
        self.early_exit.add_prompt_tokens(prompt)

    @operation
    def set_tree(self, *, size: int, depth: int) -> None:
        """Set the trees to draft; does nothing here (see `runtime.drafters.streams`)."""

    @operation
    def stream(self, window: Window) -> Verdict:  # noqa: ARG002
        """Verify, and draft the next window in the same pass; raise `LaneError` for a target without streams."""
        raise LaneError("this lane has loaded no streams of its target, so that it cannot draft for itself")

    @operation
    @inference
    def verify(self, window: Window) -> Verdict:
        """Run all layers over the last committed token and the window; the verdict has the features of kept rows."""
        rows = self.advance(self.embed(window), self.num_layers)
        verdict = self.decide(rows)
        if not self._feature_layers:
            return verdict
        nodes = range(verdict.num_accepted) if not window.parents else verdict.path
        return verdict._replace(features=self._features(rows, [0, *[node + 1 for node in nodes]]))

    @operation
    @inference
    def prefix(self, window: Window, exit_layer: int, num_candidates: int) -> ExitSignal:
        """Run the layers up to `exit_layer`; return the exit's candidates and the features of all rows."""
        rows = self._waiting = self.advance(self.embed(window), exit_layer)
        candidates, log_probs = self.early_exit.read(rows.x_BTD, exit_layer, num_candidates)
        if (replay := self._sampling.replay) is not None:
            places = enumerate(candidates, self.cache.cursor + 1)
            candidates = tuple(replay.exit_candidates(place, ids) for place, ids in places)
        return ExitSignal(candidates, log_probs, self._features(rows) if self._feature_layers else None)

    @operation
    @inference
    def suffix(self) -> Verdict:
        """Run the remaining layers over the rows of the last `prefix`."""
        assert self._waiting is not None, "suffix without a prefix"
        rows, self._waiting = self._waiting, None
        return self.decide(self.advance(rows, self.num_layers))

    @inference
    def embed(self, window: Window) -> RowsUnderWay:
        """Embed the last committed token and the window."""
        ids, context = (self._last_token, *window.tokens), self.cache.cursor
        if window.parents:
            tree = tree_rows(window.parents)
            return self._embed(ids, tree.depths + context, tree.mask(context), window)
        return self._embed(ids, np.arange(context, context + len(ids)), None, window)

    @inference
    def advance(self, rows: RowsUnderWay, stop: int) -> RowsUnderWay:
        """Run the layers up to `stop`, keeping the states after feature layers."""
        x_BTD, kept = self.backend.run_keeping(
            rows.x_BTD,
            rows.layers_done,
            stop,
            self._feature_layers,
            positions=rows.positions,
            mask=rows.mask,
            cache=self.cache,
        )
        taps = (*rows.taps, *(x_BTD[0] for x_BTD in kept.values()))
        return rows._replace(x_BTD=x_BTD, layers_done=stop, taps=taps)

    @inference
    def decide(self, rows: RowsUnderWay) -> Verdict:
        """Return the verdict on rows that have passed all layers, and keep the keys of accepted rows."""
        logits_TV, position = self.backend.logits(rows.x_BTD)[0], self.cache.cursor + 1
        if self._sampling.is_greedy and not is_on_host(logits_TV):
            # all argmaxes at once, as the rules ask row by row and would wait for the device each time
            verdict = decide_greedy(best_numbers(logits_TV).tolist().__getitem__, rows.window, self._sampling, position)
        else:
            verdict = decide(on_host(logits_TV), rows.window, self._sampling, position)
        self.keep(verdict)
        return verdict

    def keep(self, verdict: Verdict) -> None:
        """Keep the keys of the accepted rows, in text order, and the verdict's next token."""
        first = self.cache.cursor + 1
        if verdict.path:
            self.cache.gather([first + node for node in verdict.path], first)
        self.cache.set_length(first + verdict.num_accepted)
        self._last_token = verdict.next_token

    def _embed(
        self,
        ids: Sequence[int],
        positions: NDArray[np.int64],
        mask: NDArray[np.float32] | None,
        window: Window = NO_WINDOW,
    ) -> RowsUnderWay:
        x_BTD = self.backend.embedding(np.array([ids], np.int64))
        return RowsUnderWay(window=window, x_BTD=x_BTD, layers_done=0, positions=positions, mask=mask)

    def _features(self, rows: RowsUnderWay, kept_rows: list[int] | None = None) -> Array:
        """Return the features of all rows, or of some."""
        taps = rows.taps
        if kept_rows is not None:
            # the first rows are a view of the taps; other rows are gathered
            is_start = kept_rows == list(range(len(kept_rows)))
            taps = tuple(tap[: len(kept_rows)] if is_start else tap[kept_rows] for tap in taps)
        return self.backend.features(stacked(taps, 1), is_raw=self._raw_features)
