"""Predicts the speed-up of Mirror-SD for every cell of a published table, from that of vanilla speculation.

The published speed-up of vanilla speculation gives the acceptance rate of a cell's texts, and the rate gives the
speed-up of Mirror-SD. Cells thus have no constants of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isclose
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from costs.cost_model import Floats
from costs.durations import DurationTables
from costs.round_plan import RoundShape
from decoding.schedule import Schedule
from planner.published.stream_rates import WINDOW, stream_rate
from planner.reproduce.published_table import PublishedCell, PublishedTable
from planner.reproduce.setup import EXIT_TOP_K, PROMPT_TOKENS, ROUNDS, Arm, ConstantName, Constants, Setup
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.acceptance.replay import Replay
from sim.arrays.array_lanes import Decided, time_rounds

_HALVINGS: Final = 50
NUM_TOKENS: Final = (ROUNDS + 1) * (WINDOW + 1)
_NUM_STREAMING_TEXTS: Final = 64


class RoundSeconds(NamedTuple):
    """Seconds of a schedule's rounds: window refused or accepted whole, each with a branch (hit) or without (miss)."""

    refused_hit: float
    refused_miss: float
    whole_hit: float
    whole_miss: float

    def mean(self, rate: Floats, coverage: float) -> Floats:
        """Return the mean seconds of a round at acceptance rates `rate`, if a share `coverage` of outcomes are hits."""
        whole = rate**WINDOW
        hit = (1 - whole) * self.refused_hit + whole * self.whole_hit
        miss = (1 - whole) * self.refused_miss + whole * self.whole_miss
        return coverage * hit + (1 - coverage) * miss


class Arms(NamedTuple):
    """Seconds per token of plain decoding, and of the rounds of every arm."""

    plain_s: float
    rounds: Mapping[Arm, RoundSeconds]

    @classmethod
    def of(cls, setup: Setup, constants: Constants) -> "Arms":
        """Return the times of a setup with given constants; raises what `Setup.profile` raises."""
        machine = setup.profile(constants)
        contexts = _texts(setup.exit_layer)[0].contexts(None)  # those of all texts
        tables = DurationTables(machine.profile, contexts, machine.costs)
        return cls(
            _seconds(setup.plain, tables, setup.exit_layer).refused_hit,
            {arm: _seconds(schedule, tables, setup.exit_layer) for arm, schedule in setup.arms.items()},
        )

    def speedup(self, arm: Arm, rate: Floats, coverage: float) -> Floats:
        """Return the speed-ups over plain decoding at acceptance rates `rate`."""
        return tokens_per_round(rate) * self.plain_s / self.rounds[arm].mean(rate, coverage)

    def rate_of(self, speedup: Floats) -> Floats:
        """Return the acceptance rates at which vanilla speculation has these speed-ups; 0 or 1 where no rate does."""
        low, high = np.zeros_like(speedup), np.ones_like(speedup)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_below = self.speedup("sd", middle, 0.0) < speedup
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return np.where(self.speedup("sd", np.ones_like(high), 0.0) <= speedup, 1.0, low)


def tokens_per_round(rate: Floats) -> Floats:
    """Return the committed tokens of a round, including the target's own."""
    tokens: Floats = (rate[..., np.newaxis] ** np.arange(WINDOW + 1)).sum(axis=-1)
    return tokens


def _seconds(schedule: Schedule, tables: DurationTables, exit_layer: int) -> RoundSeconds:
    """Return the mean seconds of each kind of round, without the first and last rounds of texts, which differ."""
    texts = _texts(exit_layer, schedule.draft_streams)
    durations, found = tables.durations(schedule, _shape(texts[0], schedule)), []
    for text in texts:
        walk = text.walk(schedule, None)
        times = time_rounds(schedule, durations, _decided(text, schedule))
        found.append(float(times.seconds[~walk.is_first & ~walk.is_last].mean()))
    return RoundSeconds(*found)


@cache
def _shape(text: Replay, schedule: Schedule) -> RoundShape:
    return text.shape(schedule)


@cache
def _decided(text: Replay, schedule: Schedule) -> Decided:
    """Return what happens in the rounds of a text, which does not depend on the machine."""
    walk, guessing = text.walk(schedule, None), text.guessing(schedule)
    guesses = None if guessing is None else guessing.counts(walk.at)
    return Decided(walk, text.branches(schedule, walk), guesses)


@cache
def _texts(exit_layer: int, num_streams: int = 0) -> tuple[Bernoulli, ...]:
    """Return texts of each kind of round, in the order of `RoundSeconds`.

    There is one of each, or with streams many, since their tokens are right at random.
    """
    num_texts = _NUM_STREAMING_TEXTS if num_streams else 1
    return tuple(
        Bernoulli(
            float(whole),
            texts=Texts(num_texts=num_texts, num_tokens=NUM_TOKENS, prompt_length=PROMPT_TOKENS),
            exit_coverage={exit_layer: (float(hit),) * EXIT_TOP_K},
            stream_rates=(stream_rate(),) * num_streams,
        )
        for whole in (0, 1)
        for hit in (1, 0)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedCell:
    """One cell: the published speed-ups, the acceptance rate, and the predicted speed-ups of all arms.

    The rate is chosen so that arm `sd` has the published speed-up of vanilla speculation, unless no rate gives that.
    The last arm, `mirror_streaming`, is the Mirror-SD that the paper publishes.
    """

    published: PublishedCell
    rate: float
    arms: Mapping[Arm, float]

    @property
    def mirror(self) -> float:
        """Return the predicted speed-up of Mirror-SD as published, which drafts with streams."""
        return self.arms["mirror_streaming"]

    @property
    def error(self) -> float | None:
        """Return the relative error of Mirror-SD's speed-up, positive if it is overestimated; None if not published."""
        return None if self.published.mirror is None else self.mirror / self.published.mirror - 1

    @property
    def lead(self) -> float | None:
        """Return predicted Mirror-SD over published EAGLE-3."""
        return None if self.published.eagle is None else self.mirror / self.published.eagle

    @property
    def published_lead(self) -> float | None:
        """Return published Mirror-SD over published EAGLE-3."""
        if self.published.eagle is None or self.published.mirror is None:
            return None
        return self.published.mirror / self.published.eagle

    @property
    def is_reached(self) -> bool:
        """Return whether some acceptance rate gives the published speed-up of vanilla speculation on this machine."""
        return isclose(self.arms["sd"], self.published.vanilla, rel_tol=1e-6)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """The predictions for a whole table, the constants used, and which of them were fitted to this very table."""

    table: PublishedTable
    setup: Setup
    constants: Constants
    fitted: tuple[ConstantName, ...]
    arms: Arms
    cells: tuple[PredictedCell, ...]

    @property
    def mean_abs_error(self) -> float | None:
        """Over the cells that have a published Mirror-SD; None without any."""
        errors = [abs(cell.error) for cell in self.cells if cell.error is not None]
        return fmean(errors) if errors else None

    @property
    def mean_arms(self) -> tuple[float, ...]:
        """Return the mean of every arm over all cells."""
        return tuple(map(fmean, zip(*(cell.arms.values() for cell in self.cells), strict=True)))


def predict_table(
    table: PublishedTable, setup: Setup, constants: Constants, *, fitted: Sequence[ConstantName] = ()
) -> Reproduction:
    """Predict all cells with given constants; raises what `Setup.profile` raises."""
    arms, coverage = Arms.of(setup, constants), constants["exit_coverage"]
    rates = arms.rate_of(np.array([cell.vanilla for cell in table.cells]))
    found = {arm: arms.speedup(arm, rates, coverage).tolist() for arm in arms.rounds}
    cells = tuple(
        PredictedCell(published=cell, rate=rate, arms={arm: speedups[index] for arm, speedups in found.items()})
        for index, (cell, rate) in enumerate(zip(table.cells, rates.tolist(), strict=True))
    )
    return Reproduction(
        table=table, setup=setup, constants=dict(constants), fitted=tuple(fitted), arms=arms, cells=cells
    )
