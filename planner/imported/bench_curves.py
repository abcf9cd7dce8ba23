"""Row curves that engines' own benchmarks timed: samples by model, device and settings, merged into curves."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose
from statistics import fmean, median
from typing import Any, Final, Literal, NamedTuple

from decoding.errors import ConfigError
from planner.wording import counted, milliseconds

How = Literal["one sequence", "several sequences"]
UNNAMED: Final = "the device"
"""The name of a device that a file does not name."""
MOST_ROWS: Final = 64
"""Passes over more rows are ignored: they are prompts, not verifications."""
_GROWING_ROWS: Final = 8
SERVED: Final = "through its server"
"""The settings of times measured over sampled prompts, whose mean length differs from run to run."""
_ALIKE: Final = 0.1
"""Relative difference up to which such mean lengths count as one context."""
_ROUNDED: Final = 0.01
"""Relative difference up to which two sizes may be of one model: tables round to two decimals, 1.00 or more."""
_PER_ROW: Final = 10.0
"""A pass this many times slower than its rows one by one, or faster than fewer rows, must be in another unit."""
_ONE_MODEL: Final = 2.0
"""Times of one pass that differ by more than this factor are of two models, such as a target and its draft."""


class BenchTime(NamedTuple):
    """Seconds of a pass, and the 90 % interval of its repeats; three equal numbers if the interval is not known."""

    time_s: float
    low: float
    high: float

    @classmethod
    def of(cls, mean_s: float, deviation_s: float = 0.0) -> "BenchTime":
        """Return a mean with the interval that a standard deviation gives."""
        return cls(mean_s, max(0.0, mean_s - 1.645 * deviation_s), mean_s + 1.645 * deviation_s)


class CurveOf(NamedTuple):
    """What the times of one curve have in common.

    Attributes:
        engine, model, device: as the file names them.
        how: whether the rows are of one sequence, as in a verification, or of several, each with its own cache.
        context: cached tokens before the rows.
        settings: what else the file says about the measurement, and what the times do not include.
    """

    engine: str
    model: str
    device: str
    how: How
    context: int
    settings: str = ""


class ModelSize(NamedTuple):
    """The size of a model, which distinguishes models of the same name; zeros where a file does not state it."""

    num_params: float = 0.0
    num_bytes: float = 0.0

    def is_alike(self, other: "ModelSize") -> bool:
        """Return whether two sizes differ only by rounding."""
        return all(isclose(*both, rel_tol=_ROUNDED) for both in zip(self, other, strict=True))

    @property
    def in_words(self) -> str:
        """The sizes as parts of a name."""
        return f"{self.num_params / 1e9:.3g} B parameters, {self.num_bytes / 2**30:.3g} GiB"


class Sample(NamedTuple):
    """One measured time: its curve, its rows, and whether it is of decoding (or else of a prompt)."""

    curve: CurveOf
    rows: int
    time: BenchTime
    is_decoding: bool = True
    model_size: ModelSize = ModelSize()


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchCurve:
    """Times of one model on one device, by ascending rows; `source` names the files."""

    of: CurveOf
    times: Mapping[int, BenchTime]
    source: str

    def ratio(self, rows: int) -> float | None:
        """Return the time of `rows` rows over that of one; None where one row was not timed."""
        return self.times[rows].time_s / self.times[1].time_s if 1 in self.times else None

    @property
    def growth_per_row(self) -> tuple[float, float, float] | None:
        """How much each further row, up to eight, slows a pass: (fitted, lowest, highest); None without such rows."""
        ratios = {rows: self.ratio(rows) for rows in self.times if 1 < rows <= _GROWING_ROWS}
        slopes = {rows: (ratio - 1) / (rows - 1) for rows, ratio in ratios.items() if ratio is not None}
        if not slopes:
            return None
        weights = {rows: (rows - 1) ** 2 for rows in slopes}
        fitted = sum(slope * weights[rows] for rows, slope in slopes.items()) / sum(weights.values())
        return fitted, min(slopes.values()), max(slopes.values())

    @property
    def entry(self) -> dict[str, Any]:
        """Return the curve as `mirrorsd curve --json` writes one."""
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
    """Return the curves of (file name, sample) pairs. If plain decoding was timed, it gives the time of one row.

    Raises `ConfigError` where times of one curve and as many rows are too far apart to be of one model.
    """
    found, by_curve = list(samples), defaultdict[CurveOf, list[tuple[str, Sample]]](list)
    sizes = defaultdict[str, list[ModelSize]](list)
    for _, sample in found:
        known = sizes[sample.curve.model]
        if not any(map(sample.model_size.is_alike, known)):
            known.append(sample.model_size)
    for source, sample in sorted(found, key=lambda one: one[1].curve.context * (one[1].curve.settings == SERVED)):
        of = sample.curve
        size = next(filter(sample.model_size.is_alike, sizes[of.model]))
        if any(size) and len(sizes[of.model]) > 1:
            of = of._replace(model=f"{of.model} ({size.in_words})")
        by_curve[_known_curve(of, by_curve)].append((source, sample))
    return tuple(_curve(of, own) for of, own in by_curve.items())


def _known_curve(of: CurveOf, known: Iterable[CurveOf]) -> CurveOf:
    """Return the known curve that a sample belongs to, else its own; served prompts may differ a little in length."""
    if of.settings != SERVED:
        return of
    near = (one for one in known if abs(of.context - one.context) <= _ALIKE * one.context)
    return next((one for one in near if one == of._replace(context=one.context)), of)


def _curve(of: CurveOf, samples: list[tuple[str, Sample]]) -> BenchCurve:
    times = defaultdict[int, list[BenchTime]](list)
    has_plain = any(one.rows == 1 and one.is_decoding for _, one in samples)
    for _, one in samples:
        if one.rows > 1 or one.is_decoding or not has_plain:
            times[one.rows].append(one.time)
    source = ", ".join(dict.fromkeys(source for source, _ in samples))
    for rows, own in times.items():
        least, most = (function(one.time_s for one in own) for function in (min, max))
        if most > _ONE_MODEL * least:
            raise ConfigError(
                f"{source}: a pass over {counted(rows, 'row')} of {of.model} took {milliseconds(least)} and "
                f"{milliseconds(most)}, so these seem to be two models: give each a file of its own"
            )
    means = {rows: BenchTime(*map(median, zip(*own, strict=True))) for rows, own in sorted(times.items())}
    for (few, less), (many, more) in pairwise(means.items()):
        if not 1 / _PER_ROW <= more.time_s / less.time_s <= _PER_ROW * many / few:
            raise ConfigError(
                f"{source}: passes of {of.model} over {counted(few, 'row')} and {counted(many, 'row')} took "
                f"{milliseconds(less.time_s)} and {milliseconds(more.time_s)}, so the units seem to differ"
            )
    of = of._replace(context=round(fmean(one.curve.context for _, one in samples)))
    return BenchCurve(of=of, times=means, source=source)


def settings_apart(curves: Sequence[BenchCurve]) -> list[tuple[list[str], list[str]]]:
    """Return (settings that not all curves have, settings that all have) of each curve."""
    every = [curve.of.settings.split(", ") for curve in curves]
    shared = {one for own in every for one in own if all(one in other for other in every)}
    return [([one for one in own if one not in shared], [one for one in own if one in shared]) for own in every]
