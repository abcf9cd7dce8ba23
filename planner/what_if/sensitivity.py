"""Sensitivity of a plan: what would have to change for another kind of decoding to win, and what faster parts gain.

A sweep predicts only a shortlist (the best schedule of every method, placement and number of drafted tokens), since it
does so dozens of times. Break-evens are computed for many random draws of prompts and tokens, among the schedules that
were the best of their kind anywhere in the sweep.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.lane_profile import PARTS, TARGET_PARTS, Event
from hwprofiles.profile import Profile
from planner.first_of_each import first_of_each
from planner.search.search import Candidate, SearchResult
from planner.search.space import FEWEST
from planner.what_if.mixed_record import Mixing, token_acceptance
from planner.wording import Kind, kind_of
from sim.acceptance.replay import replay_of
from sim.evaluator import Evaluator

_Part = Literal["target", "draft", "link"]
_Way = Literal["down", "up"]
_Floats = NDArray[np.float64]
_Quantity = Literal["acceptance", "draft_speed"]
World = Callable[[float], Evaluator]
"""Returns the evaluator at a value of the swept quantity."""
ACCEPTANCES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
DRAFT_SPEEDS = (0.125, 0.25, 0.5, 0.707, 1.414, 2.0, 4.0, 8.0)
NUM_DRAWS = 16
FASTER = 1.1
"""How many times as fast each part is made for `Sensitivity.gains`."""
_DRAFT_PARTS: Final = tuple(part for part in PARTS if part not in TARGET_PARTS)
_TARGET_EVENTS: Final[tuple[Event, ...]] = ("exit", "features")
_DRAFT_EVENTS: Final[tuple[Event, ...]] = ("first_step",)
_WIN_AS_IT_FALLS: Final[Mapping[_Quantity, tuple[Kind, ...]]] = {
    "acceptance": ("plain",),
    "draft_speed": ("plain", "lookup", "mirror"),
}
"""Kinds that may become the fastest when the quantity falls: those without the draft, and those that hide a slow draft.
Others would do so only by chance, since all drafters get worse together and some happen to lose a token or two less."""


def with_speed(profile: Profile, part: _Part, factor: float) -> Profile:
    """Return the profile with one part `factor` times as fast, on all lanes or links.

    `target`: layers, `lm_head`, exits, prefill and the return of hidden states. `draft`: steps and prefill of all
    drafters, and what streams add to the target's pass. `link`: latency and bandwidth. Dispatch and the driver's own
    time do not change.
    """
    if part == "link":
        links = tuple(
            link.model_copy(update={"latency_s": link.latency_s / factor, "bytes_per_s": link.bytes_per_s * factor})
            for link in profile.links
        )
        return profile.model_copy(update={"links": links})
    factors = dict.fromkeys(TARGET_PARTS if part == "target" else _DRAFT_PARTS, 1 / factor)
    events = dict.fromkeys(_TARGET_EVENTS if part == "target" else _DRAFT_EVENTS, 1 / factor)
    lanes = tuple(lane.scaled(factors).with_overheads_scaled(events) for lane in profile.lanes)
    return profile.model_copy(update={"lanes": lanes})


class BreakEven(NamedTuple):
    """A value at which two kinds are equally fast: median and 90 % interval over many random draws."""

    at: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Sequence[float | None]) -> "BreakEven | None":
        """Return the break-even of some draws; None if any of them has none."""
        found = [draw for draw in draws if draw is not None]
        if len(found) < len(draws):
            return None
        low, at, high = np.percentile(found, (5, 50, 95))
        return cls(at=float(at), low=float(low), high=float(high))


def crossing(
    ask: Callable[[float], Mapping[Kind, float]], values: Sequence[float], here: int, challenger: Kind, way: _Way
) -> float | None:
    """Return the value from which on `challenger` is the fastest, going up or down (`way`) from today's `values[here]`.

    `ask` returns the best time per token of each kind at one of `values`; between these, times are interpolated. If the
    challenger is the fastest already today, the search goes the opposite way. None if there is no such value.
    """

    def lead_s(place: int) -> float:
        times_s = ask(values[place])
        return min(time_s for kind, time_s in times_s.items() if kind != challenger) - times_s[challenger]

    leads_here = lead_s(here) > 0
    step = (1 if way == "up" else -1) * (-1 if leads_here else 1)
    place = here
    while 0 <= place + step < len(values):
        before, after = lead_s(place), lead_s(place + step)
        if (after > 0) != leads_here:
            return values[place] + (values[place + step] - values[place]) * before / (before - after)
        place += step
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The best time per token of every kind while one quantity moves, at each of its ascending `values`.

    Attributes:
        quantity: `acceptance` (share of tokens that the draft gets right) or `draft_speed` (relative to today's).
        now: today's value, one of `values`.
        break_evens: for kinds that are slower today, the nearest value at which they become the fastest. Kinds that do
            not become the fastest in every draw are left out.
    """

    quantity: _Quantity
    now: float
    values: tuple[float, ...]
    best_tpot_s: dict[Kind, tuple[float, ...]]
    break_evens: dict[Kind, BreakEven] = field(default_factory=dict)


class Sensitivity(NamedTuple):
    """Sweeps, and the relative gain of tokens per second if one part were 10 % faster."""

    sweeps: tuple[Sweep, ...]
    gains: dict[_Part, float]


class SweptQuantity(NamedTuple):
    """A quantity, today's value and the grid; `world` takes texts and seeds of draws, and returns a `World`."""

    quantity: _Quantity
    now: float
    grid: Sequence[float]
    world: Callable[[AcceptanceRecord, Sequence[int]], World]

    @property
    def values(self) -> tuple[float, ...]:
        """The grid and today's value, ascending."""
        return tuple(sorted({*self.grid, self.now}))


def analyse(
    result: SearchResult, profile: Profile, record: AcceptanceRecord, challengers: Collection[Kind] | None = None
) -> Sensitivity:
    """Sweep acceptance and draft speed, and predict the gain of each part being 10 % faster.

    Break-evens are sought for `challengers`, such as the kinds that are surely slower than the winner; None for all.
    """
    schedules = shortlist(result)
    gains = _gains(result, schedules, profile, record)
    if result.best_drafting() is None:
        return Sensitivity((), gains)

    def with_texts(texts: AcceptanceRecord, seeds: Sequence[int]) -> World:
        today, mixing = Evaluator(profile, texts), Mixing(texts)

        def at(value: float) -> Evaluator:
            mixed = [mixing.at(value, seed=seed).prompts for seed in seeds]
            return today.with_texts(replace(texts, prompts=tuple(chain.from_iterable(mixed))))

        return at

    def with_draft(texts: AcceptanceRecord, seeds: Sequence[int]) -> World:
        repeated = replay_of(replace(texts, prompts=texts.prompts * len(seeds)))
        return lambda value: Evaluator(with_speed(profile, "draft", value), repeated)

    questions = (
        SweptQuantity("acceptance", token_acceptance(record), ACCEPTANCES, with_texts),
        SweptQuantity("draft_speed", 1.0, DRAFT_SPEEDS, with_draft),
    )
    return Sensitivity(tuple(sweep(one, schedules, record, challengers) for one in questions), gains)


def _gains(
    result: SearchResult, schedules: Sequence[Schedule], profile: Profile, record: AcceptanceRecord
) -> dict[_Part, float]:
    """Return the gain of making each part faster. Schedules that are slower by more than `FASTER` cannot win then."""
    now_s = result.candidates[0].tpot_s
    close = {one.schedule for one in result.candidates if one.tpot_s <= FASTER * now_s}
    contenders = [schedule for schedule in schedules if schedule in close]
    texts = replay_of(record)
    evaluators = {part: Evaluator(with_speed(profile, part, FASTER), texts) for part in get_args(_Part)}
    return {part: now_s / min(map(evaluator.tpot_s, contenders)) - 1 for part, evaluator in evaluators.items()}


def shortlist(result: SearchResult) -> list[Schedule]:
    """Return the best schedule of every method, rule, root source, placement and number of drafted tokens."""

    def kind(one: Candidate) -> tuple[object, ...]:
        schedule = one.schedule
        return schedule.method, schedule.verification, schedule.root_source, one.placement, schedule.num_rows

    return [one.schedule for one in first_of_each(result.candidates, kind)]


def sweep(
    question: SweptQuantity,
    schedules: Sequence[Schedule],
    record: AcceptanceRecord,
    challengers: Collection[Kind] | None = None,
) -> Sweep:
    """Return the best times at each value of a quantity, and the break-evens of `challengers` (None: of all kinds)."""
    values, world = question.values, question.world(record, (0,))
    best = {value: best_by_kind(schedules, world(value)) for value in values}
    times = {value: {kind: time_s for kind, (time_s, _) in found.items()} for value, found in best.items()}
    today = times[question.now]
    fastest = min(today, key=today.__getitem__)
    slower = [kind for kind in today if kind != fastest and (challengers is None or kind in challengers)]
    found_ways = {kind: _way(question, times, kind) for kind in slower}
    ways = {kind: way for kind, way in found_ways.items() if way is not None}
    leaders = list(dict.fromkeys(schedule for found in best.values() for _, schedule in found.values()))
    return Sweep(
        quantity=question.quantity,
        now=question.now,
        values=values,
        best_tpot_s={kind: tuple(times[value][kind] for value in values) for kind in today},
        break_evens=_break_evens(question, leaders, record, ways) if ways else {},
    )


def _way(question: SweptQuantity, times: Mapping[float, Mapping[Kind, float]], challenger: Kind) -> _Way | None:
    """Return the way to the nearest value at which the challenger leads; None if there is none."""
    here = question.values.index(question.now)
    ways: list[_Way] = ["up", "down"] if challenger in _WIN_AS_IT_FALLS[question.quantity] else ["up"]
    found = {way: crossing(times.__getitem__, question.values, here, challenger, way) for way in ways}
    distances = {way: abs(at - question.now) for way, at in found.items() if at is not None}
    return min(distances, key=distances.__getitem__, default=None)


def _break_evens(
    question: SweptQuantity, schedules: Sequence[Schedule], record: AcceptanceRecord, ways: Mapping[Kind, _Way]
) -> dict[Kind, BreakEven]:
    texts = _only_asked(record, schedules)
    weights_DT, world = _drawn_prompts(texts.prompt_numbers), question.world(texts, range(NUM_DRAWS))

    @cache
    def drawn(value: float) -> dict[Kind, _Floats]:
        """Return the best time per token of every kind, [draws]."""
        return _drawn_times(schedules, world(value), weights_DT)

    def ask(draw: int, value: float) -> dict[Kind, float]:
        return {kind: float(times_D[draw]) for kind, times_D in drawn(value).items()}

    here = question.values.index(question.now)
    found = {
        kind: BreakEven.of(
            [crossing(partial(ask, draw), question.values, here, kind, way) for draw in range(NUM_DRAWS)]
        )
        for kind, way in ways.items()
    }
    return {kind: one for kind, one in found.items() if one is not None}


def _drawn_prompts(prompt_numbers: Sequence[int]) -> _Floats:
    """Return how often each text counts in each draw (a bootstrap over prompts), [draws, texts].

    In the first draw, and with fewer than `FEWEST` prompts in all draws, each prompt counts once.
    """
    num_prompts = len(set(prompt_numbers))
    weights_DP = np.ones((NUM_DRAWS, num_prompts))
    if num_prompts >= FEWEST:
        random = np.random.default_rng(0)
        weights_DP[1:] = random.multinomial(num_prompts, [1 / num_prompts] * num_prompts, size=NUM_DRAWS - 1)
    return weights_DP[:, prompt_numbers]


def _drawn_times(schedules: Sequence[Schedule], evaluator: Evaluator, weights_DT: _Floats) -> dict[Kind, _Floats]:
    """Return the best time per token of every kind, [draws]; the evaluator has the texts of all draws in a row."""
    best: dict[Kind, _Floats] = {}
    for schedule in schedules:
        times = evaluator.prompt_times(schedule)
        decode_s_D, tokens_D = ((weights_DT * np.reshape(one, weights_DT.shape)).sum(axis=1) for one in times)
        best[kind_of(schedule)] = np.minimum(best.get(kind_of(schedule), np.inf), decode_s_D / tokens_D)
    return best


def _only_asked(record: AcceptanceRecord, schedules: Sequence[Schedule]) -> AcceptanceRecord:
    """Return the record without the trees that no schedule drafts, except the first, which `token_acceptance` needs."""
    asked = [place for place, tree in enumerate(record.trees) if not place or any(map(tree.answers, schedules))]
    prompts = (
        replace(prompt, tree_ranks=tuple(prompt.tree_ranks[place] for place in asked)) for prompt in record.prompts
    )
    return replace(record, trees=tuple(record.trees[place] for place in asked), prompts=tuple(prompts))


def best_by_kind(schedules: Sequence[Schedule], evaluator: Evaluator) -> dict[Kind, tuple[float, Schedule]]:
    """Return the fastest schedule of every kind, with its time per token."""
    best: dict[Kind, tuple[float, Schedule]] = {}
    for schedule in schedules:
        kind, time_s = kind_of(schedule), evaluator.tpot_s(schedule)
        if kind not in best or time_s < best[kind][0]:
            best[kind] = (time_s, schedule)
    return best
