"""The best draft length at every batch size, and from which size on plain decoding wins.

Plain decoding is compared with every window of each method and placement, with its best settings for one sequence.
Batches are simulated only, see `sim.batch_prediction`.
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
"""Largest share by which tokens per second may exceed `BatchPredictor.estimate`, where target and draft work in turn
(3 % was found) and at once (24 %: sequences without a branch verify one row). There is none for one sequence."""
_MOST_PLAYED = 8
"""Schedules played for a batch size, with a draft and without. In ten plans on eight shipped platforms, for 2, 8 and 32
sequences after up to 8,000 tokens, the best of 40 was at most 1.7 % faster than those that are played."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchChoice:
    """The plain decoding and the speculation (`drafting`, on the lanes of `pair`) with most tokens per second.

    There is no speculation where none can be played: where none fits, or what it takes is not known. `by_engine` has
    the best that the engine runs whose times these are; None where it runs none.
    """

    plain: BatchPrediction
    drafting: BatchPrediction | None
    pair: LanePair | None
    by_engine: "BatchChoice | None" = None

    @property
    def rows(self) -> tuple["BatchChoice", ...]:
        """Itself, and what the engine runs where that is another one."""
        return (self, self.by_engine) if self.by_engine and self.by_engine.drafting != self.drafting else (self,)

    @property
    def best_window(self) -> int | None:
        """Drafted tokens of the best, 0 for plain decoding; None where it was compared with nothing."""
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
    """The best by batch size, ascending, and what was left out, and why.

    `beyond` says for each lane from which size on passes have more rows than anybody measured; `engine` is the one
    whose times these are; None where none is known.
    """

    choices: dict[int, BatchChoice]
    left_out: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    engine: str | None = None

    def __repr__(self) -> str:
        """One line: the schedules of all sizes would fill pages."""
        return f"<BatchPlan of {len(self.choices)} sizes: {self.in_words.partition('. ')[0]}>"

    @property
    def compared(self) -> dict[int, BatchChoice]:
        """The sizes at which speculation was predicted: nowhere else has plain decoding won anything."""
        return {size: choice for size, choice in self.choices.items() if choice.drafting is not None}

    @property
    def switch_off_at(self) -> int | None:
        """The batch size from which on plain decoding is the best; None if the largest one has a better."""
        return switch_off_at({size: choice.best for size, choice in self.compared.items()})

    @property
    def in_words(self) -> str:
        """The answer in a few sentences."""
        if not self.choices:
            return f"Batches cannot be predicted here: {'; '.join(self.left_out)}."
        moved = "".join(f" {one}." for one in (*self._run, *self._in_turn, *self.beyond))
        basis = "Batches are simulated only, stay full, and have no interval."
        return f"{self._best_in_words}.{moved} {basis}"

    @property
    def _best_in_words(self) -> str:
        compared = self.compared
        alone = [str(size) for size in self.choices if size not in compared]
        unknown = f"speculation could not be predicted at {listing(alone)} (see what is left out)" if alone else ""
        if not compared:
            return f"Whether plain decoding is the fastest is not known: {unknown}"
        windows = {size: choice.best_window for size, choice in compared.items()}
        listed = _listed(windows)
        off = self.switch_off_at
        still = "still " * all(windows.values())
        largest = "the largest for which both were predicted" if alone else "the largest of these batches"
        end = (
            f"speculation is {still}the fastest at {max(compared)}, {largest}"
            if off is None
            else "plain decoding is the fastest at all of these batches"
            if off == min(compared)
            else f"of these batches, plain decoding is the fastest from {off} sequences at once on"
        )
        return f"Best draft length by batch size: {listed}; {end}" + (f"; {unknown}" if unknown else "")

    @property
    def _run(self) -> Iterator[str]:
        """Say which lengths the engine runs where others are best, where it runs none, and what vLLM calls them."""
        found = {size: choice.by_engine for size, choice in self.choices.items() if choice.by_engine is not None}
        windows = {size: choice.best_window or 0 for size, choice in found.items()}
        if any(len(choice.rows) > 1 for choice in self.choices.values()):
            yield f"Of what {self.engine} runs: {_listed(windows)}"
        others = [str(size) for size, choice in self.compared.items() if choice.by_engine is None]
        if self.engine is not None and others:
            yield f"{self.engine}, whose times these are, runs no speculation here at {listing(others)}"
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
        """Say which batches only a slower device holds, so that fewer sequences at a time are served sooner."""
        fastest: tuple[int, BatchPrediction] | None = None
        for size, choice in self.choices.items():
            if fastest is None or choice.best.tokens_per_s >= fastest[1].tokens_per_s:
                fastest = size, choice.best
            elif (lane := choice.best.schedule.target_lane) != fastest[1].schedule.target_lane:
                beside = f"{fastest[0]} at a time on {fastest[1].schedule.target_lane}"
                yield f"{size} sequences at once fit on {lane} alone, where they are slower than {beside}"


def plan_batches(plan: PlatformPlan, sizes: Iterable[int]) -> BatchPlan:
    """Return the best speculation and the best plain decoding at batch sizes (1..256 each).

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
        if size > 1 and (anew := _split_anew(plan, size)) is not None:
            asked, predictor, dropped = anew
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
    """Say of each target lane from which size on its passes have more rows than anybody knows the price of."""
    told = set[str]()
    for size, choice in choices.items():
        schedule = choice.best.schedule
        split, rows = LayerSplit.of(schedule.target_lane), size * schedule.num_rows
        for lane in (schedule.target_lane,) if split is None else split.devices:
            speed = plan.machine.speeds.get(lane)
            if speed is not None and speed.known_rows is not None and rows > speed.known_rows and lane not in told:
                told.add(lane)
                known = known_in_words(speed.known_rows, by_law=speed.is_by_law)
                yield f"From {size} on passes on {lane} have more rows ({rows}) than {known}"


def _best(
    predictor: BatchPredictor, size: int, asked: Iterable[PlannedSchedule], refused: dict[LanePair, list[ProfileError]]
) -> tuple[BatchPrediction, LanePair] | None:
    """Return the prediction with most tokens per second, and its placement; None where all schedules are refused.

    Schedules are played by falling estimates, but for those that cannot come up to the best that was played.
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
    """Return what is asked of a batch where caches take the places of layers on cards, what predicts it, and the rest.

    None where layers are split over no devices so that so many sequences have room.
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
    """Return the schedules whose target is whole on its lane."""
    return [one for one in plan.ranking if LayerSplit.of(one.pair.target) is None]


def _asked(ranking: Iterable[PlannedSchedule]) -> list[PlannedSchedule]:
    """Return the fastest schedule by placement, method, source of roots, rows, and whether a draft uses streams."""

    def kind(one: PlannedSchedule) -> tuple[object, ...]:
        schedule = one.schedule
        return one.pair, schedule.method, schedule.root_source, schedule.draft_streams > 0, schedule.num_rows

    return first_of_each((one for one in ranking if not one.needs_training), kind)


def _fitting(
    plan: PlatformPlan, asked: list[PlannedSchedule], size: int, left_out: dict[str, None]
) -> list[PlannedSchedule]:
    """Return the schedules whose memories hold the models (of plain ones the target) and `size` sequences' caches."""
    fits = dict[LanePair, bool]()
    for one in asked:
        if one.pair not in fits:
            alone = not one.schedule.num_speculative_tokens
            needs = needs_of(plan.question, one.pair, num_sequences=size, alone=alone)
            misfits = [need.in_words for need in needs if not need.fits]
            left_out.update((f"batches of {size}: {reason.rstrip('.')}", None) for reason in misfits[:1])
            fits[one.pair] = not misfits
    return [one for one in asked if fits[one.pair]]
