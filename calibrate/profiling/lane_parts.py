"""Which parts are timed on a lane, and the tables that their times make."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from calibrate.fitting.fit import CATCH_UP_ROWS, TargetTables, TargetTimes, fit_target, grow, make_table
from calibrate.profiling.grid import Effort
from calibrate.fitting.noise import Noise
from calibrate.profiling.visits import Cell, Samples
from hwprofiles.placement import PlacedLane
from hwprofiles.profile import LaneProfile, LatencyTable
from runtime.wire.measurement import Measurement, Part

DraftStep = Literal["draft_step", "draft_step_features"]
"""Steps of the draft, without features and with them, by their tables in a `LaneProfile`."""

_DEVICE = "generic-cpu"
_NUM_CANDIDATES = 9
_OF_THE_DRAFT = ("draft_step", "draft_streams")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneParts:
    """The parts of one target and its draft.

    Attributes:
        effort: sizes and repeats.
        num_layers: of the target.
        exit_layers: exits that schedules may take.
        draft_steps: without features only, both, or (no draft) neither.
        num_streams: the draft's own; 0 without.
        source: origin of the numbers, as the tables name it.
    """

    effort: Effort
    num_layers: int
    exit_layers: tuple[int, ...]
    draft_steps: tuple[DraftStep, ...]
    num_streams: int
    source: str

    def cells(self, lane: str) -> Iterator[Cell]:
        """Everything to be timed on a lane."""
        for rows in self.effort.target_rows:
            yield from (Cell(lane, self._verify(rows, context)) for context in self._contexts(rows))
        for rows in self.effort.tree_rows:
            yield Cell(lane, self._verify(rows, self.effort.contexts[0]))
        for rows in self.effort.part_rows:
            yield Cell(lane, self._head(rows))
            if self.exit_layers:
                yield Cell(lane, self._exit(rows))
        for kind in self.draft_steps:
            for rows in self.effort.draft_rows:
                yield from (Cell(lane, self._step(kind, rows, context)) for context in self._contexts(rows))
        yield from (Cell(lane, self._streams(count)) for count in self._guesses)

    def lane_profile(self, lane: PlacedLane, samples: Samples) -> LaneProfile:
        """The profile of a lane, from the times of its cells; without heads and memory traffic."""
        taken = {cell.measurement: seconds for cell, seconds in samples.seconds.items() if cell.lane == lane.name}
        medians = {measurement: median(seconds) for measurement, seconds in taken.items()}
        steps_noise = Noise.of([times for one, times in taken.items() if one.part in _OF_THE_DRAFT])
        target_noise = Noise.of([times for one, times in taken.items() if one.part not in _OF_THE_DRAFT])
        target = self._target_tables(medians, target_noise)
        steps = {kind: self._step_table(kind, medians, steps_noise) for kind in self.draft_steps}
        return LaneProfile(
            name=lane.name,
            device=_DEVICE,
            cores=lane.cores,
            num_threads=lane.num_threads,
            dispatch_s=median(samples.dispatch_s[lane.name]),
            layer=target.layer,
            lm_head=target.lm_head,
            exit=target.exits,
            draft_step=steps.get("draft_step"),
            draft_step_features=steps.get("draft_step_features"),
            draft_streams=self._streams_table(medians, steps_noise) if self.num_streams else None,
        )

    def _target_tables(self, medians: Mapping[Measurement, float], noise: Noise) -> TargetTables:
        rows, part_rows = (*self.effort.target_rows, *self.effort.tree_rows), self.effort.part_rows
        times = TargetTimes(
            verify={(count, at): medians[self._verify(count, at)] for count in rows for at in self._contexts(count)},
            lm_head={count: medians[self._head(count)] for count in part_rows},
            exit={count: medians[self._exit(count)] for count in part_rows} if self.exit_layers else {},
            exit_layers=self.exit_layers,
        )
        return fit_target(times, self.num_layers, self.effort.contexts, noise=noise, source=self.source)

    def _step_table(self, kind: DraftStep, medians: Mapping[Measurement, float], noise: Noise) -> LatencyTable:
        rows, contexts = self.effort.draft_rows, self.effort.contexts
        times = {(count, at): medians[self._step(kind, count, at)] for count in rows for at in self._contexts(count)}
        branches = bisect_right(rows, CATCH_UP_ROWS)
        groups = (rows,) if kind == "draft_step" else (rows[:1], rows[1:branches], rows[branches:])
        lines = grow(times, groups, contexts, noise)
        return make_table(rows, contexts, lines, relative_error=noise.relative_error, source=self.source)

    def _streams_table(self, medians: Mapping[Measurement, float], noise: Noise) -> LatencyTable:
        """What a longer context adds to one row's streams is less than the noise."""
        smooth = noise.smoothed({count: medians[self._streams(count)] for count in self._guesses})
        lines = [[seconds] for seconds in smooth.values()]
        return make_table(self._guesses, (0,), lines, relative_error=noise.relative_error, source=self.source)

    @property
    def _guesses(self) -> range:
        return range(1, self.num_streams + 1)

    def _contexts(self, rows: int) -> tuple[int, ...]:
        is_wide = rows in self.effort.wide_rows and rows not in self.effort.tree_rows
        return self.effort.contexts if is_wide else self.effort.contexts[:1]

    def _verify(self, rows: int, context: int) -> Measurement:
        """Of a chain, or of a tree where chains are not so wide: the mask of a tree costs next to nothing."""
        part: Part = "verify_tree" if rows in self.effort.tree_rows else "verify"
        return Measurement(part=part, rows=rows, context=context, repeats=self.effort.repeats, warm_up=1)

    def _head(self, rows: int) -> Measurement:
        return replace(self._verify(rows, self.effort.contexts[0]), part="lm_head")

    def _exit(self, rows: int) -> Measurement:
        """An exit costs the same after every layer: the first one is reached soonest."""
        return replace(self._head(rows), part="exit", exit_layer=min(self.exit_layers), num_candidates=_NUM_CANDIDATES)

    def _streams(self, count: int) -> Measurement:
        repeats, context = 2 * self.effort.repeats, self.effort.contexts[0]
        return Measurement(part="draft_streams", rows=count, context=context, repeats=repeats, warm_up=1)

    def _step(self, kind: DraftStep, rows: int, context: int) -> Measurement:
        """A step of so many rows as it mostly occurs.

        One row never has features, even where steps may: drafted tokens are fed one by one, without. A few rows
        with features are a rollout's first step, of which the last row alone proposes.
        """
        has_features = kind == "draft_step_features"
        return Measurement(
            part="draft_step",
            rows=rows,
            context=context,
            repeats=2 * self.effort.repeats,
            warm_up=1,
            with_features=has_features and rows > 1,
            num_proposals=1 if has_features and rows <= CATCH_UP_ROWS else None,
        )
