"""The parts that calibration times on a lane, and the tables made of their times.

A lane holds one drafter at a time, so drafters take turns within each pass. Draft heads are timed at one context, since
the effect of the context on a single layer is below the noise. In a timing loop a head stays in the processor's cache,
whereas in a run the target evicts it each round; short decodings measure that difference.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from calibrate.fitting.fit import Size, TargetTimes, fit_table, fit_target, slots_between
from calibrate.fitting.noise import half_width_of
from calibrate.fitting.ratios import AnchorRatio, Estimate, estimate
from calibrate.profiling.task import CalibrationTask, DraftStep, up_to
from decoding.methods import METHODS
from hwprofiles.bounds import MOST_RELATIVE_ERROR
from hwprofiles.lane_cores import PlacedLane
from hwprofiles.lane_profile import LanePart, LaneProfile
from hwprofiles.latency_table import Anchor, LatencyTable
from runtime.backends.lane_device import CORES, Device
from runtime.wire.measurement import Measurement, Part

_CORES: Final = "generic-cpu"
_NUM_CANDIDATES = 9
OF_THE_TARGET: Final = frozenset({"verify", "verify_tree"})
"""Whole passes of the target: these are timed most often."""
_OF_THE_DRAFT = frozenset({"draft_step", "draft_start", "draft_streams", "draft_prefill"})
_BENDS: Final = 0.03
"""Relative standard deviation of compiled kernels' times at single numbers of rows from their trend: in fifteen demos
passes of 2 to 9 rows were up to 5 % off, the same way each time, which a calibration of a few minutes cannot tell from
noise. With this error 160 of 179 intervals of 90 % held, without it 143."""
_LAST = ("lm_head", "exit")
_FEW_BRANCHES = 8
_START_WINDOW = 3
"""Rows of the window in a timed step that starts branches; with features the shortest windows are drafted."""
_HEAD_REPEATS: Final = 3
_FIND_REPEATS: Final = 200
_STREAM_PAIRS: Final = 4
"""Number of pairs of a verification without and one with streams, which are timed in turn."""
_STREAM_ROWS: Final = 6
"""Rows of these verifications; streams follow the last accepted row only, so the number does not matter."""


def prefills(part: Part, task: CalibrationTask) -> dict[Size, Measurement]:
    """Return the measurements of prefills by size; each prompt is read once, without warm-up, as in use."""
    rows = task.effort.prefill_rows
    return {(count, 0): Measurement(part=part, rows=count, context=0, repeats=1, warm_up=0) for count in rows}


class LaneParts:
    """The parts of a target and its draft model on one lane.

    `timed` has the measurements by table and size. Row counts are reduced to those that the lane's back end computes
    differently. The draft's streams are timed only on lanes that can run them.
    """

    def __init__(self, task: CalibrationTask, lane: PlacedLane) -> None:
        self._task, self._lane, self._device = task, lane, Device.of_lane(lane.name)
        effort, rows_on = task.effort, self._device.timed_rows
        self._effort = replace(effort, target_rows=rows_on(effort.target_rows), draft_rows=rows_on(effort.draft_rows))
        self._num_streams = task.sizes.num_draft_streams if self._device.has_readable_cache else 0
        most = task.max_branches
        self._streaming = sorted({min(_FEW_BRANCHES, most), most} - {1}) if self._num_streams else []
        # a pass also writes at least one new row, hence the slots of context + 1 positions
        self._slots = slots_between(
            {*effort.contexts, task.anchor_context}, lambda context: self._device.num_slots(context + 1)
        )
        self.timed = self._timed()

    @property
    def shortest_pass(self) -> Measurement:
        """The verification of the fewest rows at the shortest context."""
        return self.timed["verify"][min(self.timed["verify"])]

    def measurements(self) -> Iterator[Measurement]:
        """Yield all measurements, whole passes first; each exit directly follows the `lm_head` of as many rows."""
        whole, *others = (sizes.values() for name, sizes in self.timed.items() if name not in _LAST)
        last = zip(*(self.timed[name].values() for name in _LAST if name in self.timed), strict=True)
        yield from chain(whole, *last, *others)

    def profile(self, estimates: Mapping[Measurement, Estimate], anchor: Anchor, dispatch_s: float) -> LaneProfile:
        """Return the lane's profile from its parts' times over its anchor, without draft heads and memory traffic."""
        found = {
            name: {size: estimates[of].over(1 / anchor.seconds) for size, of in sizes.items()}
            for name, sizes in self.timed.items()
        }
        bends, source = _BENDS if self._device.prepares else 0.0, self._task.source

        def error_of(parts: Iterable[str]) -> float:
            return half_width_of([one for of, one in estimates.items() if of.part in parts], bends=bends)

        def alone_s(name: str) -> dict[int, float]:
            return {rows: one.value for (rows, _), one in found.get(name, {}).items()}

        layer, lm_head, exits = fit_target(
            TargetTimes(found["verify"], alone_s("lm_head"), alone_s("exit")),
            num_layers=self._task.sizes.config.num_layers,
            anchor=((1, anchor.context), anchor.seconds),
            slots=self._slots,
            error=error_of(OF_THE_TARGET),
            source=source,
        )
        of_draft = error_of(_OF_THE_DRAFT)
        fields: dict[str, Any] = {
            name: fit_table(times, of_draft, source, self._slots)
            for name, times in found.items()
            if name.startswith("draft") and name != "draft_prefill"
        }
        for name, parts in (("prefill", {"prefill"}), ("draft_prefill", _OF_THE_DRAFT)):
            if name in found:
                fields[name] = fit_table(found[name], error_of(parts), source)
        return LaneProfile(
            name=self._lane.name,
            device=_CORES if self._device == CORES else self._device.name,
            kind=self._device.kind,
            cores=self._lane.cores,
            dispatch_s=dispatch_s,
            layer=layer,
            lm_head=lm_head,
            exit={} if exits is None else dict.fromkeys(self._task.exit_layers, exits),
            anchor=anchor,
            **fields,
        )

    def _timed(self) -> dict[str, dict[Size, Measurement]]:
        """Return the measurements by table and size; for streams the effect of the context is below the noise."""
        effort, task = self._effort, self._task
        rows, first = (*effort.target_rows, *effort.tree_rows), effort.contexts[0]
        heads = {(count, 0): replace(self._verify(count, first), part="lm_head") for count in effort.part_rows}
        timed = {
            "verify": {(count, at): self._verify(count, at) for count in rows for at in self._contexts(count)},
            "lm_head": heads,
            "prefill": prefills("prefill", task),
        }
        if task.exit_layers:  # exits cost the same after all layers: time one
            layer = min(task.exit_layers)
            timed["exit"] = {
                size: replace(head, part="exit", exit_layer=layer, num_candidates=_NUM_CANDIDATES)
                for size, head in heads.items()
            }
        if task.draft_steps:
            timed["draft_prefill"] = prefills("draft_prefill", task)
        for kind in task.draft_steps:
            timed[kind] = {
                (count, at): self._step(kind, count, at)
                for count in self._rows_of(kind)
                for at in self._contexts(count)
            }
        if self._num_streams:
            one_row, branches = (
                range(1, self._num_streams + 1),
                [count * self._num_streams for count in self._streaming],
            )
            timed["draft_streams"] = {(count, 0): self._streams(count) for count in (*one_row, *branches)}
        return timed

    def _contexts(self, rows: int) -> tuple[int, ...]:
        is_wide = rows in self._effort.wide_rows and rows not in self._effort.tree_rows
        return self._effort.contexts if is_wide else self._effort.contexts[:1]

    def _verify(self, rows: int, context: int) -> Measurement:
        """Return the verification of a chain, or of a tree for more rows than chains have: its mask costs little."""
        part: Part = "verify_tree" if rows in self._effort.tree_rows else "verify"
        return Measurement(part=part, rows=rows, context=context, repeats=self._effort.repeats, warm_up=1)

    def _streams(self, count: int) -> Measurement:
        """Return the measurement of `count` guesses: those of one row, or those of one row of each branch."""
        repeats, context = 2 * self._effort.repeats, self._task.contexts[0]
        in_branches = self._num_streams if count > self._num_streams else 0
        return Measurement(
            part="draft_streams", rows=count, context=context, repeats=repeats, warm_up=1, num_guesses=in_branches
        )

    def _step(self, kind: DraftStep, rows: int, context: int) -> Measurement:
        """Return the measurement of a step.

        Several rows with features are a rollout's first step, in which only the last row proposes tokens, or start
        branches. One row is timed without features, as drafted tokens are fed. (A rollout after a round without
        accepted tokens has one row with features; it is priced as a row without, which is a little too low.)
        """
        num_proposals = {"draft_step": None, "draft_step_features": 1, "draft_start": rows - _START_WINDOW}
        return Measurement(
            part="draft_start" if kind == "draft_start" else "draft_step",
            rows=rows,
            context=context,
            repeats=2 * self._effort.repeats,
            warm_up=1,
            with_features=kind != "draft_step" and rows > 1,
            num_proposals=num_proposals[kind],
            num_guesses=self._num_streams if kind == "draft_step" and rows > self._effort.draft_rows[-1] else 0,
        )

    def _rows_of(self, kind: DraftStep) -> tuple[int, ...]:
        """Return the row counts at which a step is timed.

        A rollout's first step reads at most a window and one token. Steps that verify guesses in branches may have more
        rows than steps without guesses.
        """
        rows = self._effort.draft_rows
        if kind == "draft_step_features":
            return up_to(self._effort.target_rows[-1], rows)
        if kind == "draft_start":
            return tuple(count for count in rows if count > _START_WINDOW)
        guessing = [count * (1 + self._num_streams) for count in self._streaming]
        return (*rows, *[count for count in guessing if count > rows[-1]])


class HeadParts:
    """Measurements and tables of a drafter that is no draft model; the target's streams are timed within its passes."""

    def __init__(self, task: CalibrationTask, drafter: str) -> None:
        self._task, self._traits = task, METHODS[task.heads[drafter]]

    def measurements(self) -> list[Measurement]:
        """Return all measurements on a lane that has loaded the drafter."""
        if self._traits.drafts_itself:
            return [self._stream(part) for _ in range(_STREAM_PAIRS) for part in ("verify_tree", "stream")]
        return [*self._steps().values(), *self._prompts().values()]

    def tables(
        self, ratios: Mapping[Measurement, Sequence[AnchorRatio]], anchor_s: float
    ) -> dict[LanePart, LatencyTable]:
        """Return tables for any context, by part, from times over the anchor; no table if the times are only noise."""
        if self._traits.drafts_itself:
            return self._streams_table(ratios, anchor_s)

        def table(sizes: Mapping[Size, Measurement]) -> LatencyTable:
            times: dict[Size, Estimate] = {size: estimate(ratios[of]).over(1 / anchor_s) for size, of in sizes.items()}
            return fit_table(times, half_width_of(list(times.values())), self._task.source)

        steps: dict[LanePart, LatencyTable] = {"heads": table(self._steps())}
        return steps | {"head_prefill": table(self._prompts())} if self._prompts() else steps

    def _streams_table(
        self, ratios: Mapping[Measurement, Sequence[AnchorRatio]], anchor_s: float
    ) -> dict[LanePart, LatencyTable]:
        """Return the time that streams add: the mean difference of verifications timed in turn; {} if not positive."""
        without, with_them = (ratios[self._stream(part)] for part in ("verify_tree", "stream"))
        pairs = list(zip(without, with_them, strict=True))
        ratio = estimate([AnchorRatio(more.value / less.value, max(more.doubt, less.doubt)) for less, more in pairs])
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
        """Return the measurements of steps by size; a lookup counts as one row whatever it finds."""
        finds_text, context = self._traits.finds_text, self._task.contexts[0]
        repeats = _FIND_REPEATS if finds_text else _HEAD_REPEATS
        return {
            (rows, 0): Measurement(part="head_step", rows=rows, context=context, repeats=repeats, warm_up=1)
            for rows in ((1,) if finds_text else self._task.effort.head_rows)
        }

    def _prompts(self) -> dict[Size, Measurement]:
        return prefills("draft_prefill", self._task) if self._traits.reads_states else {}

    def _stream(self, part: Part) -> Measurement:
        """Return a verification without or with streams; both directly follow each other."""
        context = self._task.contexts[0]
        return Measurement(part=part, rows=_STREAM_ROWS, context=context, repeats=1, warm_up=0)
