"""Which parts are timed on a lane, and the tables that their times make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from calibrate.fitting.fit import TargetTables, TargetTimes, fit_target, grow, make_table
from calibrate.fitting.noise import Noise
from calibrate.fitting.ratios import Estimate
from calibrate.profiling.grid import Effort
from hwprofiles.placement import PlacedLane
from hwprofiles.profile import Anchor, LaneProfile, LatencyTable
from runtime.backends.lane_device import CORES, Device
from runtime.wire.measurement import Measurement, Part

DraftStep = Literal["draft_step", "draft_step_features", "draft_start"]
"""Steps of the draft, by their tables in a `LaneProfile`."""

_CORES: Final = "generic-cpu"
_NUM_CANDIDATES = 9
PAUSE_S: Final = 0.015
"""How long lanes of a schedule wait for each other, by and large."""
OF_THE_TARGET: Final = frozenset({"verify", "verify_tree"})
"""Whole passes of the target: these are timed most often."""
_OF_THE_DRAFT = ("draft_step", "draft_start", "draft_streams", "draft_prefill")
_BENDS: Final = 0.03
"""Compiled kernels do better at some numbers of rows than at their neighbours: in fifteen demos passes of 2 to 9 rows
were up to 5 % off their line, in the same way each time, which a calibration of a few minutes cannot tell from noise.
With it 160 of 179 intervals of 90 % held, without 143."""
_FEW_BRANCHES = 8
_START_WINDOW = 3
"""Rows of the window among those that start branches: the shortest windows are drafted with features."""

Estimates = Mapping[Measurement, Estimate]
"""What was timed on one lane, over the lane's anchor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneParts:
    """The parts of one target and its draft, timed by some effort; `draft_steps` is empty without a draft."""

    effort: Effort
    num_layers: int
    exit_layers: tuple[int, ...]
    draft_steps: tuple[DraftStep, ...]
    num_streams: int
    max_branches: int
    source: str

    @property
    def anchor_context(self) -> int:
        """Cached tokens of the anchors: halfway."""
        return sum(self.effort.contexts[:: len(self.effort.contexts) - 1]) // 2

    def on(self, lane: str) -> LaneParts:
        """With the row counts that say what every other costs on a lane, and streams where a lane computes any."""
        device, effort = Device.of_lane(lane), self.effort
        target_rows, draft_rows = (device.timed_rows(rows) for rows in (effort.target_rows, effort.draft_rows))
        num_streams = self.num_streams if device.has_open_keys else 0
        return replace(
            self, effort=replace(effort, target_rows=target_rows, draft_rows=draft_rows), num_streams=num_streams
        )

    @property
    def pass_after_wait(self) -> Measurement:
        """The anchor's work after a rest as long as a draft may take."""
        return Measurement(part="verify", rows=1, context=self.anchor_context, repeats=4, warm_up=0, pause_s=PAUSE_S)

    def measurements(self) -> Iterator[Measurement]:
        """Everything to be timed, on a lane that these are the parts of (`on`)."""
        yield self.pass_after_wait
        for rows in self.effort.target_rows:
            yield from (self._verify(rows, context) for context in self._contexts(rows))
        for rows in self.effort.tree_rows:
            yield self._verify(rows, self.effort.contexts[0])
        for rows in self.effort.part_rows:
            yield self._head(rows)
            if self.exit_layers:
                yield self._exit(rows)
        yield from (prefill("prefill", rows) for rows in self.effort.prefill_rows)
        if self.draft_steps:
            yield from (prefill("draft_prefill", rows) for rows in self.effort.prefill_rows)
        for kind in self.draft_steps:
            for rows in self._rows_of(kind):
                yield from (self._step(kind, rows, context) for context in self._contexts(rows))
        yield from map(self._streams, self._guesses)

    def passes(self) -> Iterator[Measurement]:
        """Those of `measurements` that are a pass through the whole target, one of each width."""
        for rows in (*self.effort.target_rows, *self.effort.tree_rows):
            yield self._verify(rows, self.effort.contexts[0])

    def profile(self, lane: PlacedLane, estimates: Estimates, anchor: Anchor, dispatch_s: float) -> LaneProfile:
        """The profile of a lane from what its parts take over its anchor; without heads and memory traffic."""
        seconds = {measurement: one.over(1 / anchor.seconds) for measurement, one in estimates.items()}
        device = Device.of_lane(lane.name)
        bends = _BENDS if device.prepares else 0.0
        steps_noise = Noise.of([one for of, one in estimates.items() if of.part in _OF_THE_DRAFT], bends=bends)
        pass_noise = Noise.of([one for of, one in estimates.items() if of.part in OF_THE_TARGET], bends=bends)
        prompt_noise = Noise.of([one for of, one in estimates.items() if of.part == "prefill"], bends=bends)
        target = self._target_tables(seconds, pass_noise, anchor)
        steps = {kind: self._step_table(kind, seconds, steps_noise) for kind in self.draft_steps}
        return LaneProfile(
            name=lane.name,
            device=_CORES if device == CORES else device.name,
            cores=lane.cores,
            num_threads=lane.num_threads,
            dispatch_s=dispatch_s,
            layer=target.layer,
            lm_head=target.lm_head,
            exit=target.exits,
            draft_step=steps.get("draft_step"),
            draft_step_features=steps.get("draft_step_features"),
            draft_start=steps.get("draft_start"),
            draft_streams=self._streams_table(seconds, steps_noise) if self.num_streams else None,
            prefill=prefill_table("prefill", self.effort, seconds, prompt_noise, self.source),
            draft_prefill=(
                prefill_table("draft_prefill", self.effort, seconds, steps_noise, self.source)
                if self.draft_steps
                else None
            ),
            anchor=anchor,
        )

    def _target_tables(self, seconds: Estimates, noise: Noise, anchor: Anchor) -> TargetTables:
        rows, part_rows = (*self.effort.target_rows, *self.effort.tree_rows), self.effort.part_rows
        times = TargetTimes(
            verify={(count, at): seconds[self._verify(count, at)] for count in rows for at in self._contexts(count)},
            lm_head={count: seconds[self._head(count)].value for count in part_rows},
            exit={count: seconds[self._exit(count)].value for count in part_rows} if self.exit_layers else {},
            exit_layers=self.exit_layers,
            anchor=((1, anchor.context), anchor.seconds),
        )
        return fit_target(times, self.num_layers, self.effort.contexts, noise=noise, source=self.source)

    def _step_table(self, kind: DraftStep, seconds: Estimates, noise: Noise) -> LatencyTable:
        rows, contexts = self._rows_of(kind), self.effort.contexts
        times = {(count, at): seconds[self._step(kind, count, at)] for count in rows for at in self._contexts(count)}
        # a single row has no features, and takes less for it
        groups = (rows[:1], rows[1:]) if kind == "draft_step_features" else (rows,)
        lines = grow(times, groups, contexts, noise)
        return make_table(rows, contexts, lines, relative_error=noise.half_width(len(rows)), source=self.source)

    def _streams_table(self, seconds: Estimates, noise: Noise) -> LatencyTable:
        """What a longer context adds to streams is less than the noise."""
        of_branches = [count for count in self._guesses if count > self.num_streams]
        of_one_row = [count for count in self._guesses if count <= self.num_streams]
        times = {count: seconds[self._streams(count)] for count in self._guesses}
        return context_free(times, noise, self.source, of_one_row, of_branches)

    @property
    def _guesses(self) -> tuple[int, ...]:
        """Guesses that are timed together: those of one row, and all that streams have for the rows of branches."""
        one_row, branches = range(1, self.num_streams + 1), self._streaming_branches
        return (*one_row, *(count * self.num_streams for count in branches if self.num_streams))

    @property
    def _streaming_branches(self) -> tuple[int, ...]:
        """Branches with guesses whose steps are timed."""
        return tuple(sorted({min(_FEW_BRANCHES, self.max_branches), self.max_branches} - {1}))

    @property
    def _guess_rows(self) -> tuple[int, ...]:
        """Rows of steps that verify guesses in branches, where there are more than steps without have."""
        rows = (count * (1 + self.num_streams) for count in self._streaming_branches if self.num_streams)
        return tuple(count for count in rows if count > self.effort.draft_rows[-1])

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
        in_branches = self.num_streams if count > self.num_streams else 0
        return Measurement(
            part="draft_streams", rows=count, context=context, repeats=repeats, warm_up=1, num_guesses=in_branches
        )

    def _step(self, kind: DraftStep, rows: int, context: int) -> Measurement:
        """A step of so many rows.

        One row never has features, even where steps may: drafted tokens are fed one by one, without. Several rows with
        features are a rollout's first step, of which the last row alone proposes, or start branches.
        """
        num_proposals = {"draft_step": None, "draft_step_features": 1, "draft_start": rows - _START_WINDOW}
        return Measurement(
            part="draft_start" if kind == "draft_start" else "draft_step",
            rows=rows,
            context=context,
            repeats=2 * self.effort.repeats,
            warm_up=1,
            with_features=kind != "draft_step" and rows > 1,
            num_proposals=num_proposals[kind],
            num_guesses=self.num_streams if kind == "draft_step" and rows in self._guess_rows else 0,
        )

    def _rows_of(self, kind: DraftStep) -> tuple[int, ...]:
        """Row counts at which a step is timed: a rollout's first step reads a window at most, and its last token."""
        rows = self.effort.draft_rows
        if kind == "draft_step_features":
            most = self.effort.target_rows[-1]
            return (*[count for count in rows if count < most], most)
        return (
            (*rows, *self._guess_rows)
            if kind == "draft_step"
            else tuple(count for count in rows if count > _START_WINDOW)
        )


def prefill(part: Part, rows: int) -> Measurement:
    """Reading a prompt of so many rows: once, as it is read once."""
    return Measurement(part=part, rows=rows, context=0, repeats=1, warm_up=0)


def prefill_table(part: Part, effort: Effort, seconds: Estimates, noise: Noise, source: str) -> LatencyTable:
    """What prompts cost, by their rows."""
    return context_free({count: seconds[prefill(part, count)] for count in effort.prefill_rows}, noise, source)


def context_free(times: Mapping[int, Estimate], noise: Noise, source: str, *groups: Sequence[int]) -> LatencyTable:
    """A table for any context from times by rows, of `groups` that differ in nothing else; of one without any."""
    rows = tuple(times)
    lines = grow({(count, 0): one for count, one in times.items()}, groups or (rows,), (0,), noise)
    return make_table(rows, (0,), lines, relative_error=noise.half_width(len(rows)), source=source)
