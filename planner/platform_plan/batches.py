"""What several sequences at once change: which window is best at every batch size, and where plain decoding wins.

Asked are plain decoding, and every window of the leading ways to speculate with the settings that are the best for one
sequence. Batches are simulated only, see `sim.batch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil

from decoding.errors import ProfileError
from decoding.record import AcceptanceRecord
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.memory_fit import needs_of
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.wording import counted, listing, schedule_name
from sim.batch.batch_prediction import BatchPrediction, predict_batch, switch_off_at
from sim.derived.derived_profile import Demand, lane_cost

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchChoice:
    """What is best for so many sequences at once.

    Attributes:
        plain: the plain decoding of most tokens per second.
        drafting, pair: the speculation of most tokens per second, and where it runs; None where none can be played.
    """

    plain: BatchPrediction
    drafting: BatchPrediction | None
    pair: LanePair | None

    @property
    def best(self) -> BatchPrediction:
        """The one of both with more tokens per second; plain decoding if they have the same."""
        drafting = self.drafting
        return drafting if drafting and drafting.tokens_per_s > self.plain.tokens_per_s else self.plain

    @property
    def speedup(self) -> float | None:
        """Tokens per second of the speculation over those of plain decoding with as many sequences."""
        return None if self.drafting is None else self.drafting.tokens_per_s / self.plain.tokens_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The answer.

    Attributes:
        choices: by batch size, ascending.
        left_out: what was not played, and why.
    """

    choices: dict[int, BatchChoice]
    left_out: tuple[str, ...]

    @property
    def switch_off_at(self) -> int | None:
        """The batch size from which on plain decoding is the best; None if it is not at the largest."""
        return switch_off_at({size: choice.best for size, choice in self.choices.items()})

    @property
    def in_words(self) -> str:
        """The answer in two sentences."""
        if not self.choices:
            return f"Batches cannot be predicted here: {'; '.join(self.left_out)}."
        windows = listing([f"{_window(choice)} at {size}" for size, choice in self.choices.items()])
        largest, off = max(self.choices), self.switch_off_at
        end = (
            f"Speculation still pays at {largest}, the largest batch asked about."
            if off is None
            else "At every batch size asked about nothing is faster than plain decoding."
            if off == min(self.choices)
            else f"From {off} sequences at once on, of the sizes asked about, nothing is faster than plain decoding: "
            "speculation is to be switched off there."
        )
        return f"The best window by batch size: {windows}. {end} Batches are simulated only, and have no interval."


def plan_batches(plan: PlatformPlan, sizes: Iterable[int] = BATCH_SIZES) -> BatchPlan:
    """The best speculation and the best plain decoding with so many sequences at once (1..64 each).

    Raises:
        ConfigError: a batch size is none.
    """
    choices: dict[int, BatchChoice] = {}
    left_out: dict[str, None] = {}
    for size in sorted(set(sizes)):
        found = list(_predicted(plan, size, left_out))
        plain = [one for one, _ in found if one.schedule.traits.window == "none"]
        drafting = [(one, pair) for one, pair in found if one.schedule.traits.window != "none"]
        if not plain:
            left_out[f"batches of {size}: no plain decoding to compare with"] = None
            continue
        leader = max(drafting, key=lambda one: one[0].tokens_per_s, default=None)
        choices[size] = BatchChoice(
            plain=max(plain, key=lambda one: one.tokens_per_s),
            drafting=None if leader is None else leader[0],
            pair=None if leader is None else leader[1],
        )
    return BatchPlan(choices=choices, left_out=tuple(left_out))


def names_of(found: BatchPlan) -> list[str]:
    """A name for the speculation of every batch size."""
    return [
        "none"
        if choice.drafting is None or choice.pair is None
        else schedule_name(choice.drafting.schedule, "in turn" if choice.pair.in_turn else "split")
        for choice in found.choices.values()
    ]


def _predicted(plan: PlatformPlan, size: int, left_out: dict[str, None]) -> Iterable[tuple[BatchPrediction, LanePair]]:
    question, record = plan.question, _full_batches(plan.question.record, size)
    demand = Demand(
        target=question.target,
        draft=question.draft,
        lanes=[lane.name for lane in plan.profile.lanes],
        exits=question.record.exit_layers,
        max_context=question.num_tokens,
    )
    # tables end where the rows of one sequence do
    costs = {name: lane_cost(question.platform, demand, name) for name in demand.lanes}
    fits: dict[LanePair, bool] = {}
    refused: dict[LanePair, list[ProfileError]] = {}
    for one in _asked(plan):
        if one.pair not in fits:
            fits[one.pair] = _fits(plan, one.pair, size, left_out)
        if not fits[one.pair]:
            continue
        try:
            yield predict_batch(one.schedule, plan.profile, record, batch_size=size, costs=costs), one.pair
        except ProfileError as error:
            refused.setdefault(one.pair, []).append(error)
    for pair, errors in refused.items():
        left_out[f"batches of {size}, {pair}, {counted(len(errors), 'schedule')}: {errors[0]}"] = None


def _asked(plan: PlatformPlan) -> list[PlannedSchedule]:
    """Plain decoding everywhere, and of every method and place every window with its best settings for one sequence.

    That is done for draft models that have streams twice, with them and without.
    """
    found: dict[object, PlannedSchedule] = {}
    for one in plan.ranking:
        if one.needs_training:
            continue
        schedule = one.schedule
        kind = schedule.method, schedule.root_source, schedule.draft_streams > 0
        found.setdefault((one.pair, kind, schedule.num_speculative_tokens), one)
    return list(found.values())


def _fits(plan: PlatformPlan, pair: LanePair, size: int, left_out: dict[str, None]) -> bool:
    """Whether the models and the caches of so many sequences fit into the memories of a placement."""
    needs = needs_of(plan.question, pair, num_sequences=size)
    misfits: Sequence[str] = [need.in_words for need in needs if not need.fits]
    left_out.update((f"batches of {size}: {reason.rstrip('.')}", None) for reason in misfits)
    return not misfits


def _full_batches(record: AcceptanceRecord, size: int) -> AcceptanceRecord:
    """All texts, and the first ones again until every batch is full."""
    count = max(1, size * ceil(len(record.prompts) / max(size, 1)))
    return replace(record, prompts=tuple(islice(cycle(record.prompts), count)))


def _window(choice: BatchChoice) -> str:
    schedule = choice.best.schedule
    return f"{schedule.num_speculative_tokens}" if schedule.num_speculative_tokens else "none"
