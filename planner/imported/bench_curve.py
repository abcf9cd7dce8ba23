"""What rows cost by somebody's benchmark: samples of times, and the curves that samples of one kind make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal, NamedTuple

How = Literal["one sequence", "several sequences"]
MOST_ROWS: Final = 64
"""Longer prompts are read for their own sake, and tell nothing of verifications."""
_GROWING_ROWS: Final = 8


class BenchTime(NamedTuple):
    """Seconds of a pass, and the 90 % interval of its repeats; all the same where nothing is said of them."""

    time_s: float
    low: float
    high: float

    @classmethod
    def of(cls, mean_s: float, deviation_s: float = 0.0) -> BenchTime:
        """Return a mean with the interval that a standard deviation gives."""
        return cls(mean_s, max(0.0, mean_s - 1.645 * deviation_s), mean_s + 1.645 * deviation_s)


class CurveOf(NamedTuple):
    """What the times of one curve have in common.

    Attributes:
        engine, model, device: as the file names them.
        how: whether rows are of one sequence, as those of a verification, or of several, each with its own cache.
        context: cached tokens before them.
        settings: whatever else the file tells of how it was measured, and what it leaves out.
    """

    engine: str
    model: str
    device: str
    how: How
    context: int
    settings: str = ""


class Sample(NamedTuple):
    """One time: of which curve, of how many rows, and whether it is of plain decoding."""

    curve: CurveOf
    rows: int
    time: BenchTime
    is_plain: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchCurve:
    """Times by rows of one model on one device, ascending; `source` is the files that they are from."""

    of: CurveOf
    times: Mapping[int, BenchTime]
    source: str

    def ratio(self, rows: int) -> float | None:
        """Return the time of so many rows over that of one; None where one row was not timed."""
        return self.times[rows].time_s / self.times[1].time_s if 1 in self.times else None

    @property
    def growth_per_row(self) -> tuple[float, float, float] | None:
        """By what share every further row, up to eight, slows a pass: fitted, least and most; None without any."""
        ratios = {rows: self.ratio(rows) for rows in self.times if 1 < rows <= _GROWING_ROWS}
        slopes = {rows: (ratio - 1) / (rows - 1) for rows, ratio in ratios.items() if ratio is not None}
        if not slopes:
            return None
        weights = {rows: (rows - 1) ** 2 for rows in slopes}
        fitted = sum(slope * weights[rows] for rows, slope in slopes.items()) / sum(weights.values())
        return fitted, min(slopes.values()), max(slopes.values())

    @property
    def entry(self) -> dict[str, Any]:
        """The curve as `mirrorsd curve --json` writes one."""
        growth = self.growth_per_row
        return {
            "target": self.of.model,
            "device": self.of.device,
            "engine": self.of.engine,
            "context": self.of.context,
            "how": self.of.how,
            "settings": self.of.settings,
            "source": self.source,
            "rows": [{"rows": rows, **time._asdict(), "ratio": self.ratio(rows)} for rows, time in self.times.items()],
            "growth_per_row": None if growth is None else dict(zip(("value", "low", "high"), growth, strict=True)),
        }


def curves_of(samples: Iterable[tuple[str, Sample]]) -> tuple[BenchCurve, ...]:
    """Return the curves that samples make, each with the name of its file: one a kind, whichever files it is from.

    One row is a step of plain decoding where that was timed. Of repeated times of as many rows the median
    is taken.
    """
    kinds = defaultdict[CurveOf, list[tuple[str, Sample]]](list)
    for source, sample in samples:
        kinds[sample.curve].append((source, sample))
    return tuple(_curve(of, own) for of, own in kinds.items())


def _curve(of: CurveOf, samples: list[tuple[str, Sample]]) -> BenchCurve:
    times = defaultdict[int, list[BenchTime]](list)
    has_plain = any(one.is_plain for _, one in samples)
    for _, one in samples:
        if one.rows > 1 or one.is_plain or not has_plain:
            times[one.rows].append(one.time)
    means = {rows: BenchTime(*map(median, zip(*own, strict=True))) for rows, own in sorted(times.items())}
    return BenchCurve(of=of, times=means, source=", ".join(dict.fromkeys(source for source, _ in samples)))
