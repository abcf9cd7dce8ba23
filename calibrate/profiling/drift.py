"""How much faster or slower a machine has become since it was calibrated.

A shared machine changes its speed within minutes, and no model of it can foresee that. The same short work, done
around calibration and again among the runs, separates such drift from the errors of a prediction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Literal

from calibrate.profiling.visits import visit
from runtime.lanes.lane import Lane
from runtime.wire.measurement import Measurement

Stage = Literal["calibration", "runs"]
_REPEATS = 3


class DriftWatch:
    """Times one-row verifications on every lane, whenever asked."""

    def __init__(self, lanes: Mapping[str, Lane], *, context: int) -> None:
        """Watch lanes that hold the target; `context` is the number of cached tokens of the work."""
        self._lanes = lanes
        self._work = Measurement(part="verify", rows=1, context=context, repeats=_REPEATS, warm_up=1)
        self._seconds: defaultdict[tuple[str, Stage], list[float]] = defaultdict(list)

    def look(self, stage: Stage) -> None:
        """Time the work once more on every lane, on behalf of a stage.

        Raises:
            LaneError: a lane was lost.
        """
        for name, lane in self._lanes.items():
            seconds, _ = visit(lane, self._work)
            self._seconds[name, stage].append(median(seconds))

    def drift(self) -> dict[str, float]:
        """By lane: median time during the runs over that around calibration, minus one.

        Positive means that the lane became slower. Lanes that were not timed in both stages are left out.
        """
        return {
            name: median(after) / median(before) - 1
            for name in self._lanes
            if (before := self._seconds[name, "calibration"]) and (after := self._seconds[name, "runs"])
        }


def drift_in_words(drift: Mapping[str, float]) -> str:
    """One sentence for people, such as "cpu0 +1.0 %, cpu1 -2.0 %"."""
    changes = ", ".join(f"{lane} {change:+.1%}".replace("%", " %") for lane, change in drift.items())
    return (
        f"Between calibration and the runs the time of a plain decoding step changed by itself: {changes}. "
        "That share of the errors is the machine's, not the prediction's."
    )
