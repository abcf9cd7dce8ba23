"""The best draft length at every batch size, and the size from which on plain decoding wins.

For each method, placement and window, the settings are those that are best for one sequence. Batches are only
simulated, see `sim.batch_prediction`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from decoding.errors import ProfileError
from hwprofiles.engines import LAW_ENGINE
from hwprofiles.machines.layer_split import LayerSplit
from planner.first_of_each import first_of_each
from planner.plan_engines import engine_of_batch, engine_of_times, is_by_its_engine
from planner.platform_plan.device_pairs import LanePair, LeftOut
from planner.platform_plan.memory_fit import needs_of
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.question import demand_of
from planner.platform_plan.ranked_schedules import NotRanked, PlannedSchedule, SlowTarget, ranked
from planner.platform_plan.split_places import split_places
from planner.wording import counted, known_in_words, listing, schedule_name
from sim.batch_prediction import BatchPrediction, BatchPredictor, switch_off_at
from sim.derived.derived_profile import derived_profile

_ESTIMATES_ERR = {False: 0.05, True: 0.25}
"""By how much (a share) tokens per second may exceed `BatchPredictor.estimate`, by whether draft and target overlap.
In turn 3 % was found; overlapping 24 %, since sequences without a branch verify one row. One sequence has no error."""
_MOST_PLAYED = 8
"""Schedules that are simulated for a batch size, with a draft and without. In ten plans on eight shipped platforms, for
2, 8 and 32 sequences after up to 8,000 tokens, the best of 40 was at most 1.7 % faster than the best of these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchChoice:
    """The best plain decoding and the best speculation, by tokens per second, for one batch size.

    Attributes:
        drafting: the speculation; None if none fits, or none has known costs.
        pair: the lanes of `drafting`.
        by_engine: the same for schedules that the engine of the predicted times runs; None if it runs none.
    """

    plain: BatchPrediction
    drafting: BatchPrediction | None
    pair: LanePair | None
    by_engine: "BatchChoice | None" = None

    @property
    def rows(self) -> tuple["BatchChoice", ...]:
        """The rows of the table: this choice and, if it differs, the best that the engine runs."""
        return (self, self.by_engine) if self.by_engine and self.by_engine.drafting != self.drafting else (self,)

    @property
    def best_window(self) -> int | None:
        """Draft length of the best, 0 for plain decoding; None where there is no speculation to compare with."""
        return None if self.drafting is None else self.best.schedule.num_speculative_tokens

    @property
    def best(self) -> BatchPrediction:
        """The one with more tokens per second; plain decoding if they are equal."""
        drafting = self.drafting
        return drafting if drafting and drafting.tokens_per_s > self.plain.tokens_per_s else self.plain

    @property
    def name(self) -> str:
        """Name of the speculation."""
        if self.drafting is None or self.pair is None:
            return "none"
        return schedule_name(self.drafting.schedule, self.pair.placement)

    @property
    def speedup(self) -> float | None:
        """Tokens per second of the speculation over those of plain decoding with as many sequences."""
        return None if self.drafting is None else self.drafting.tokens_per_s / self.plain.tokens_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The best schedules by batch size.

    Attributes:
        choices: by size, ascending.
        left_out: what was not predicted, and why.
        beyond: for each lane, the size from which on passes have more rows than were ever measured, in words.
        engine: the engine whose times are predicted; None where none is known.
    """

    choices: dict[int, BatchChoice]
    left_out: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    engine: str | None = None

    def __repr__(self) -> str:
        """Return one line: the schedules of all sizes would fill pages."""
        return f"<BatchPlan of {len(self.choices)} sizes: {self.in_words.partition('. ')[0]}>"

    @property
    def compared(self) -> dict[int, BatchChoice]:
        """The sizes at which speculation was predicted; only there can plain decoding be said to win."""
        return {size: choice for size, choice in self.choices.items() if choice.drafting is not None}

    @property
    def switch_off_at(self) -> int | None:
        """The batch size from which on plain decoding is the best; None if speculation is at the largest size."""
        return switch_off_at({size: choice.best for size, choice in self.compared.items()})

    @property
    def in_words(self) -> str:
        """The answer in a few sentences."""
        if not self.choices:
            return f"Batches cannot be predicted here: {'; '.join(self.left_out)}."
        notes = "".join(f" {one}." for one in (*self._run, *self._in_turn, *self.beyond))
        basis = "Batches are only simulated, are assumed to stay full, and have no intervals."
        return f"{self._best_in_words}.{notes} {basis}"

    @property
    def _best_in_words(self) -> str:
        compared = self.compared
        alone = [str(size) for size in self.choices if size not in compared]
        unknown = f"speculation could not be predicted at {listing(alone)} (see what is left out)" if alone else ""
        if not compared:
            return f"Whether plain decoding is the fastest is not known: {unknown}"
        windows = {size: choice.best_window for size, choice in compared.items()}
        off = self.switch_off_at
        if off is None:
            still = "still " * all(windows.values())
            largest = "the largest for which both were predicted" if alone else "the largest of these batches"
            end = f"speculation is {still}the fastest at {max(compared)}, {largest}"
        elif off == min(compared):
            end = "plain decoding is the fastest at all of these batches"
        else:
            end = f"of these batches, plain decoding is the fastest from {off} sequences at once on"
        return f"Best draft length by batch size: {_listed(windows)}; {end}" + (f"; {unknown}" if unknown else "")

    @property
    def _run(self) -> Iterator[str]:
        """Say which draft lengths are best among what the engine runs, where it runs none, and how to set vLLM."""
        found = {size: choice.by_engine for size, choice in self.choices.items() if choice.by_engine is not None}
        windows = {size: choice.best_window or 0 for size, choice in found.items()}
        if any(len(choice.rows) > 1 for choice in self.choices.values()):
            yield f"Best draft length among schedules that {self.engine} runs: {_listed(windows)}"
        without = [str(size) for size, choice in self.compared.items() if choice.by_engine is None]
        if self.engine is not None and without:
            yield f"{self.engine}, whose times are predicted, runs no speculation here at {listing(without)}"
        kinds = {(choice.pair, choice.drafting.schedule.method) for choice in found.values() if choice.drafting}
        is_table = len(kinds) == 1 and len({*windows.values()}) > 1 and [*found] == [*self.choices]
        if self.engine == LAW_ENGINE and is_table:
            starts = [1, *(size + 1 for size in found)]
            table = [[start, size, window] for start, (size, window) in zip(starts, windows.items(), strict=False)]
            yield (
                f'For {self.engine}: "num_speculative_tokens": {max(windows.values())}, '
                f'"num_speculative_tokens_per_batch_size": {table}'
            )

    @property
    def _in_turn(self) -> Iterator[str]:
        """Say which batches fit only on a slower device, where smaller batches on a faster one yield more tokens/s."""
        fastest: tuple[int, BatchPrediction] | None = None
        for size, choice in self.choices.items():
            if fastest is None or choice.best.tokens_per_s >= fastest[1].tokens_per_s:
                fastest = size, choice.best
            elif choice.best.schedule.target_lane != fastest[1].schedule.target_lane:
                faster = f"{fastest[0]} at a time on {fastest[1].schedule.target_lane}"
                lane = choice.best.schedule.target_lane
                yield f"{size} sequences at once fit only on {lane}, where they are slower than {faster}"


def plan_batches(plan: PlatformPlan, sizes: Iterable[int]) -> BatchPlan:
    """Return the best speculation and the best plain decoding at each batch size (1 to 256).

    Raises:
        ConfigError: a batch size is out of range.
    """
    choices: dict[int, BatchChoice] = {}
    left_out: dict[str, None] = {}
    of_any = _asked(plan.ranking)
    of_one = BatchPredictor(plan.profile, plan.question.record, costs=plan.costs)
    has_splits = any(LayerSplit.of(lane) for lane in plan.places.lanes)
    for size in sorted(set(sizes)):
        asked, predictor = of_any, of_one
        split_anew = _split_anew(plan, size) if size > 1 else None
        if split_anew is not None:
            asked, predictor, dropped = split_anew
            left_out.update((f"batches of {size}, {one}", None) for one in dropped)
        elif size > 1 and has_splits:
            left_out[f"batches of {size}: no split of layers has room for {size} sequences"] = None
            asked = _asked(_unsplit(plan))
        refused: dict[LanePair, list[ProfileError]] = {}
        plain, drafting = (
            _best(predictor, size, _fitting(plan, ones, size, left_out), refused)
            for ones in (
                [one for one in asked if not one.schedule.num_speculative_tokens],
                [one for one in asked if one.schedule.num_speculative_tokens],
            )
        )
        for pair, errors in refused.items():
            left_out[f"batches of {size}, {pair}, {counted(len(errors), 'schedule')}: {errors[0]}"] = None
        if plain is None:
            left_out[f"batches of {size}: no plain decoding to compare with"] = None
            continue
        by_engine = None
        if drafting is not None:
            theirs = [one for one in asked if one.schedule.num_speculative_tokens and is_by_its_engine(plan, one, size)]
            is_theirs = any(one.schedule == drafting[0].schedule for one in theirs)
            by_engine = drafting if is_theirs else _best(predictor, size, _fitting(plan, theirs, size, left_out), {})
        if drafting is None:
            lane = plain[0].schedule.target_lane
            slow = (one for one in plan.not_ranked if isinstance(one, SlowTarget) and one.lane == lane)
            left_out.update((f"batches of {size}: {one}, for one sequence", None) for one in slow)
        if not plan.speculation:
            left_out[f"batches of {size}: no speculation that needs no training"] = None
        choices[size] = BatchChoice(
            plain=plain[0],
            drafting=drafting and drafting[0],
            pair=drafting and drafting[1],
            by_engine=by_engine and BatchChoice(plain=plain[0], drafting=by_engine[0], pair=by_engine[1]),
        )
    theirs_of = [choice.by_engine.drafting for choice in choices.values() if choice.by_engine]
    engine = engine_of_batch(plan, theirs_of[0]) if theirs_of else engine_of_times(plan, plan.recommended)
    return BatchPlan(choices=choices, left_out=tuple(left_out), beyond=tuple(_beyond(plan, choices)), engine=engine)


def _listed(windows: Mapping[int, int | None]) -> str:
    """Return the draft lengths of batch sizes in words."""
    return listing([f"{window or 'none'} at {size}" for size, window in windows.items()])


def _beyond(plan: PlatformPlan, choices: dict[int, BatchChoice]) -> Iterator[str]:
    """Say for each target lane from which size on its passes have more rows than their cost is known for."""
    named = set[str]()
    for size, choice in choices.items():
        schedule = choice.best.schedule
        split, rows = LayerSplit.of(schedule.target_lane), size * schedule.num_rows
        for lane in (schedule.target_lane,) if split is None else split.devices:
            speed = plan.machine.speeds.get(lane)
            if speed is not None and speed.known_rows is not None and rows > speed.known_rows and lane not in named:
                named.add(lane)
                known = known_in_words(speed.known_rows, by_law=speed.is_by_law)
                yield f"From batch size {size} on, passes on {lane} have more rows ({rows}) than {known}"


def _best(
    predictor: BatchPredictor, size: int, asked: Iterable[PlannedSchedule], refused: dict[LanePair, list[ProfileError]]
) -> tuple[BatchPrediction, LanePair] | None:
    """Return the prediction with the most tokens per second, and its placement; None where all schedules are refused.

    Schedules are simulated in the order of their estimates; one that cannot reach the best so far is skipped.
    """
    estimates: list[tuple[float, PlannedSchedule]] = []
    for one in asked:
        try:
            estimates.append((predictor.estimate(one.schedule, size, one.prediction), one))
        except ProfileError as error:
            refused.setdefault(one.pair, []).append(error)
    best: tuple[BatchPrediction, LanePair] | None = None
    for estimate, one in sorted(estimates, key=lambda found: -found[0])[:_MOST_PLAYED]:
        most = estimate * (1 + (_ESTIMATES_ERR[one.schedule.traits.overlaps] if size > 1 else 0.0))
        if best is not None and most <= best[0].tokens_per_s:
            continue
        try:
            found = predictor.predict(one.schedule, size)
        except ProfileError as error:
            refused.setdefault(one.pair, []).append(error)
            continue
        if best is None or found.tokens_per_s > best[0].tokens_per_s:
            best = found, one.pair
    return best


def _split_anew(plan: PlatformPlan, size: int) -> tuple[list[PlannedSchedule], BatchPredictor, list[NotRanked]] | None:
    """Split layers again for a batch, whose caches leave less room for layers on the cards.

    Return the schedules to compare, their predictor and what was dropped; None if no split has room for the batch.
    """
    question, whole = plan.question, [lane for lane in plan.places.alone if LayerSplit.of(lane) is None]
    lanes, pairs = split_places(question, size)
    if not lanes and not pairs:
        return None
    places = replace(plan.places, alone=(*whole, *lanes), pairs=tuple(pairs))
    of_whole = [lane for lane in plan.places.lanes if LayerSplit.of(lane) is None]
    machine = derived_profile(question.platform, demand_of(question, list(dict.fromkeys([*of_whole, *places.lanes]))))
    ranking, dropped = ranked(question, places, machine)
    if not pairs:
        dropped.append(LeftOut(f"draft of {question.draft}", "no split of layers has room beside it"))
    split = [one for one in ranking if LayerSplit.of(one.pair.target) is not None]
    asked = _asked(sorted([*_unsplit(plan), *split], key=lambda one: one.tpot_s))
    return asked, BatchPredictor(machine.profile, question.record, costs=machine.costs), dropped


def _unsplit(plan: PlatformPlan) -> list[PlannedSchedule]:
    """Return the schedules whose target is not split by layers."""
    return [one for one in plan.ranking if LayerSplit.of(one.pair.target) is None]


def _asked(ranking: Iterable[PlannedSchedule]) -> list[PlannedSchedule]:
    """Return the fastest schedule for each placement, method, root source, number of rows, and use of streams."""

    def kind(one: PlannedSchedule) -> tuple[object, ...]:
        schedule = one.schedule
        return one.pair, schedule.method, schedule.root_source, schedule.draft_streams > 0, schedule.num_rows

    return first_of_each((one for one in ranking if not one.needs_training), kind)


def _fitting(
    plan: PlatformPlan, asked: list[PlannedSchedule], size: int, left_out: dict[str, None]
) -> list[PlannedSchedule]:
    """Return the schedules that fit into memory with the caches of `size` sequences; add the others to `left_out`."""
    fits = dict[LanePair, bool]()
    for one in asked:
        if one.pair not in fits:
            alone = not one.schedule.num_speculative_tokens
            needs = needs_of(plan.question, one.pair, num_sequences=size, alone=alone)
            misfits = [need.in_words for need in needs if not need.fits]
            left_out.update((f"batches of {size}: {reason.rstrip('.')}", None) for reason in misfits[:1])
            fits[one.pair] = not misfits
    return [one for one in asked if fits[one.pair]]
