"""Heads and streams of a target, and prompt lookup: which parts are timed on a lane, and their tables.

A lane holds one drafter at a time, so drafters take turns within every pass. What a longer context adds to a single
layer is less than the noise: heads are timed at one. In a loop a head stays in the processor's cache, which the target
empties in every round: short decodings measure what a step takes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from calibrate.fitting.fit import make_table
from calibrate.fitting.noise import Noise
from calibrate.fitting.ratios import Estimate, Ratio, estimate
from calibrate.profiling.grid import Effort
from calibrate.profiling.lane_parts import context_free, prefill, prefill_table
from decoding.methods import METHODS
from decoding.schedule import Method
from hwprofiles.bounds import MOST_RELATIVE_ERROR
from hwprofiles.latency_table import LatencyTable
from runtime.wire.measurement import Measurement, Part

_REPEATS: Final = 3
_FIND_REPEATS: Final = 200
_STREAM_PAIRS: Final = 4
"""Times that a verification without streams and one with them are timed in turn."""
_STREAM_ROWS: Final = 6
"""Streams follow the last accepted row: how many were verified makes no difference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadParts:
    """How a drafter that is no draft model is timed; `most_rows` are those of the widest verification of a schedule."""

    drafter: str
    method: Method
    effort: Effort
    most_rows: int
    source: str

    @property
    def has_streams(self) -> bool:
        """Whether the target drafts by it, in its own pass."""
        return METHODS[self.method].drafts_itself

    def measurements(self) -> Iterator[Measurement]:
        """Everything to be timed on a lane that has loaded it."""
        if self.has_streams:
            for _ in range(_STREAM_PAIRS):
                yield from (self._stream(part) for part in ("verify_tree", "stream"))
            return
        yield from (self._step(rows) for rows in self._step_rows)
        if METHODS[self.method].reads_states:
            yield from (prefill("draft_prefill", rows) for rows in self.effort.prefill_rows)

    def table(self, seconds: Mapping[Measurement, Estimate], anchor_s: float) -> LatencyTable:
        """Steps of a head or of a lookup, for any context, from what its cells take over a lane's anchor."""
        found = {count: seconds[self._step(count)].over(1 / anchor_s) for count in self._step_rows}
        return context_free(found, Noise.of(list(found.values())), self.source)

    def prefill_table(self, seconds: Mapping[Measurement, Estimate], anchor_s: float) -> LatencyTable | None:
        """Reading a prompt; None for what reads none of its own."""
        if not METHODS[self.method].reads_states:
            return None
        found = {of: one.over(1 / anchor_s) for of, one in seconds.items()}
        noise = Noise.of([one for of, one in seconds.items() if of.part == "draft_prefill"])
        return prefill_table("draft_prefill", self.effort, found, noise, self.source)

    def streams_table(self, ratios: Mapping[Measurement, Sequence[Ratio]], anchor_s: float) -> LatencyTable | None:
        """What streams add to a verification: the mean difference of those timed in turn; None if that is noise."""
        without, with_them = (ratios[self._stream(part)] for part in ("verify_tree", "stream"))
        pairs = list(zip(without, with_them, strict=True))
        ratio = estimate([Ratio(more.value / less.value, max(more.doubt, less.doubt)) for less, more in pairs])
        added = ratio.value - 1
        if added <= 0:
            return None
        added_s = added * estimate(without).value * anchor_s
        return make_table(
            (1, self.most_rows),
            (0,),
            [[added_s], [added_s]],
            relative_error=min(MOST_RELATIVE_ERROR, ratio.value * ratio.log_half_width / added),
            source=self.source,
        )

    @property
    def _step_rows(self) -> tuple[int, ...]:
        """A lookup is one row whatever it finds."""
        return (1,) if METHODS[self.method].finds_text else self.effort.head_rows

    def _step(self, rows: int) -> Measurement:
        repeats = _FIND_REPEATS if METHODS[self.method].finds_text else _REPEATS
        return Measurement(part="head_step", rows=rows, context=self.effort.contexts[0], repeats=repeats, warm_up=1)

    def _stream(self, part: Part) -> Measurement:
        """Once: a verification without streams and one with them follow each other at once."""
        return Measurement(part=part, rows=_STREAM_ROWS, context=self.effort.contexts[0], repeats=1, warm_up=0)
