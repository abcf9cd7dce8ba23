"""Heads and streams of a target, and prompt lookup: which parts are timed on a lane, and their tables.

A lane holds one drafter at a time, so drafters take turns within every pass. What a longer context adds to a single
layer is less than the noise: heads are timed at one. In a loop a head stays in the processor's cache, which the target
empties in every round: short decodings measure what a step takes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from calibrate.fitting.fit import Size, fit_table
from calibrate.fitting.noise import Noise
from calibrate.fitting.ratios import Estimate, Ratio, estimate
from calibrate.profiling.lane_parts import prefills
from calibrate.profiling.task import CalibrationTask
from decoding.methods import METHODS
from hwprofiles.bounds import MOST_RELATIVE_ERROR
from hwprofiles.lane_profile import LanePart
from hwprofiles.latency_table import LatencyTable
from runtime.wire.measurement import Measurement, Part

_REPEATS: Final = 3
_FIND_REPEATS: Final = 200
_STREAM_PAIRS: Final = 4
"""Times that a verification without streams and one with them are timed in turn."""
_STREAM_ROWS: Final = 6
"""Streams follow the last accepted row: how many were verified makes no difference."""


class HeadParts:
    """How a drafter that is no draft model is timed; a target that drafts itself does it by streams in its own pass."""

    def __init__(self, task: CalibrationTask, drafter: str) -> None:
        self._task, self._traits = task, METHODS[task.heads[drafter]]

    def measurements(self) -> list[Measurement]:
        """Everything to be timed on a lane that has loaded it."""
        if self._traits.drafts_itself:
            return [self._stream(part) for _ in range(_STREAM_PAIRS) for part in ("verify_tree", "stream")]
        return [*self._steps().values(), *self._prompts().values()]

    def tables(self, ratios: Mapping[Measurement, Sequence[Ratio]], anchor_s: float) -> dict[LanePart, LatencyTable]:
        """Tables for any context, by what each is of, from what cells take over an anchor; of noise alone none."""
        if self._traits.drafts_itself:
            return self._streams_table(ratios, anchor_s)

        def table(sizes: Mapping[Size, Measurement]) -> LatencyTable:
            times: dict[Size, Estimate] = {size: estimate(ratios[of]).over(1 / anchor_s) for size, of in sizes.items()}
            return fit_table(times, Noise.of(list(times.values())), self._task.source)

        steps: dict[LanePart, LatencyTable] = {"heads": table(self._steps())}
        return steps | {"head_prefill": table(self._prompts())} if self._prompts() else steps

    def _streams_table(
        self, ratios: Mapping[Measurement, Sequence[Ratio]], anchor_s: float
    ) -> dict[LanePart, LatencyTable]:
        """What streams add to a verification: the mean difference of those timed in turn; nothing if that is noise."""
        without, with_them = (ratios[self._stream(part)] for part in ("verify_tree", "stream"))
        pairs = list(zip(without, with_them, strict=True))
        ratio = estimate([Ratio(more.value / less.value, max(more.doubt, less.doubt)) for less, more in pairs])
        added = ratio.value - 1
        if added <= 0:
            return {}
        return {
            "streams": LatencyTable(
                rows=(1, self._task.max_tree + 1),
                contexts=(0,),
                seconds=((added * estimate(without).value * anchor_s,),) * 2,
                relative_error=min(MOST_RELATIVE_ERROR, ratio.value * ratio.log_half_width / added),
                source=self._task.source,
            )
        }

    def _steps(self) -> dict[Size, Measurement]:
        """Steps by their size; a lookup is one row whatever it finds."""
        finds_text, context = self._traits.finds_text, self._task.effort.contexts[0]
        repeats = _FIND_REPEATS if finds_text else _REPEATS
        return {
            (rows, 0): Measurement(part="head_step", rows=rows, context=context, repeats=repeats, warm_up=1)
            for rows in ((1,) if finds_text else self._task.effort.head_rows)
        }

    def _prompts(self) -> dict[Size, Measurement]:
        return prefills("draft_prefill", self._task) if self._traits.reads_states else {}

    def _stream(self, part: Part) -> Measurement:
        """Once: a verification without streams and one with them follow each other at once."""
        context = self._task.effort.contexts[0]
        return Measurement(part=part, rows=_STREAM_ROWS, context=context, repeats=1, warm_up=0)
