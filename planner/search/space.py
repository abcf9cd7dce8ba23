"""The schedules that a search tries, and which of them a profile and a record suffice to predict."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from costs.cost_model import Ints
from costs.round_plan import pool_size
from decoding.method_traits import MethodTraits
from decoding.methods import METHODS
from decoding.record import AcceptanceRecord, RecordedTree
from decoding.schedule import MAX_TREE, MAX_WINDOW, Method, RootSource, Schedule
from decoding.tree_shape import cut
from decoding.validation import Many
from decoding.yaml_file import UserModel
from hwprofiles.platform import SECOND_STREAM
from hwprofiles.profile import Profile
from sim.acceptance.replay import Replay
from sim.evaluator import Evaluator

FEWEST = 4
"""The fewest prompts that are split in halves: a half of one prompt would show no spread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Halves:
    """Two halves of a record's prompts, as places of their texts in the record.

    Attributes:
        choosing: the numbers of roots are fitted to these texts, and the winner is chosen on them.
        judging: the verdict compares schedules on these texts.
    """

    choosing: tuple[int, ...]
    judging: tuple[int, ...]


def halves(record: AcceptanceRecord) -> Halves | None:
    """Return halves with about as many prompts of each kind; None for few prompts. A prompt's texts stay together."""
    numbers = record.prompt_numbers
    if record.num_prompts < FEWEST:
        return None
    kind_of = {number: prompt.category for number, prompt in zip(numbers, record.prompts, strict=True)}
    kinds = list(kind_of.values())
    by_kind = sorted(kind_of, key=lambda number: kinds.index(kind_of[number]))

    def places_of(half: Sequence[int]) -> tuple[int, ...]:
        return tuple(place for place, number in enumerate(numbers) if number in half)

    return Halves(choosing=places_of(by_kind[::2]), judging=places_of(by_kind[1::2]))


def only(record: AcceptanceRecord, places: Sequence[int]) -> AcceptanceRecord:
    """Return the record of the texts at some places."""
    return replace(record, prompts=tuple(record.prompts[place] for place in places))


def choosing_part(record: AcceptanceRecord) -> AcceptanceRecord:
    """Return the record of the prompts to choose on; the whole record where there are too few to halve."""
    parts = halves(record)
    return record if parts is None else only(record, parts.choosing)


def judging_part(record: AcceptanceRecord) -> AcceptanceRecord:
    """Return the record of the prompts to judge on; the whole record where there are too few to halve."""
    parts = halves(record)
    return record if parts is None else only(record, parts.judging)


Placement = Literal["split", "pooled"]
USUAL_WINDOWS = 8
"""All windows of up to so many tokens are searched, and every second longer one: each costs as much search time."""
_Window = Annotated[int, Field(ge=1, le=MAX_WINDOW)]
TopK = Annotated[int, Field(ge=1, le=64)]
_Layer = Annotated[int, Field(ge=1)]
NumRoots = Annotated[int, Field(ge=1)]
NumStreams = Annotated[int, Field(ge=0, le=8)]
NumNodes = Annotated[int, Field(ge=1, le=MAX_TREE)]
ExactRule = Literal["match", "ratio"]
_Setting = Callable[..., Schedule]
"""A partial `Schedule`: the fields that are missing, at least the lanes, are its arguments."""


class SearchSpace(UserModel):
    """What a search may vary. The defaults are some hundreds of schedules for each pair of lanes.

    Attributes:
        placements: *split* puts target and draft on two lanes, *pooled* on one.
        windows: drafted tokens per round of methods that draft chains; None for 1 to `USUAL_WINDOWS`, and longer ones
            as far as they were recorded.
        exit_layers: early exits; None for all that were recorded or, with assumed acceptance, all that were timed.
        exit_top_k, draft_top_k: roots per row that the exit, or the draft, names.
        uneven_roots: roots per round; rows after which the rounds of the choosing prompts often end get more of them.
        exit_features: whether the draft reads the target's hidden states.
        draft_streams: stream tokens per draft step, cut to what the window has room for; None for zero and for all
            that were recorded.
        verification: rules for tokens of the draft model, as far as a method has them; None for both where texts were
            sampled, else `match`.
        tree_sizes: drafted tokens per round of methods that draft trees, cut to the nodes that a tree has.
        tree_depths, tree_top_k: depths of trees, and nodes that dynamic trees expand on each level; None for all that
            were recorded.
    """

    methods: Many[Method] = tuple(METHODS)
    placements: Many[Placement] = ("split", "pooled")
    windows: Many[_Window] | None = None
    root_sources: Many[RootSource] = ("exit", "draft", "hybrid")
    exit_layers: Many[_Layer] | None = None
    exit_top_k: Many[TopK] = (1, 2, 4, 8)
    draft_top_k: Many[TopK] = (1, 2, 4)
    uneven_roots: Many[NumRoots] = (8, 16)
    exit_features: Many[bool] = (False, True)
    draft_streams: Many[NumStreams] | None = None
    verification: Many[ExactRule] | None = None
    tree_sizes: Many[NumNodes] = (4, 6, 8, 12, 16, 24, 32)
    tree_depths: Many[_Window] | None = None
    tree_top_k: Many[TopK] | None = None


class Survey(NamedTuple):
    """The schedules that can be predicted, in a fixed order, and how many cannot, by what is missing."""

    schedules: tuple[Schedule, ...]
    left_out: Mapping[str, int]


def survey(
    space: SearchSpace, profile: Profile, record: AcceptanceRecord, evaluator: Evaluator | None = None
) -> Survey:
    """Divide the schedules of `space` into those that can be predicted and the others.

    `evaluator`, if given, is one of this profile and record.
    """
    if not record.prompts:
        return Survey((), {"the record has no prompt": 1})
    evaluator = evaluator or Evaluator(profile, record)
    reasons = {schedule: evaluator.missing(schedule) for schedule in enumerate_schedules(space, profile, record)}
    kept = tuple(schedule for schedule, reason in reasons.items() if reason is None)
    return Survey(kept, Counter(reason for reason in reasons.values() if reason is not None))


def enumerate_schedules(space: SearchSpace, profile: Profile, record: AcceptanceRecord) -> list[Schedule]:
    """Return every schedule of `space` once, whether it can be predicted or not."""
    schedules: dict[Schedule, None] = {}
    for name in space.methods:
        traits = METHODS[name]
        for setting, lanes in product(_settings(traits, space, profile, record), _lanes(traits, space, profile)):
            schedules[setting(**lanes)] = None
    return list(schedules)


def placement_name(schedule: Schedule, profile: Profile) -> Placement:
    """Return whether a schedule gives each model a part of the machine, or runs both on all of it.

    A target alone is split if its lane is a part of another lane: the rest of the machine, the draft's part, is idle.
    """
    if schedule.draft_lane is not None and not schedule.traits.finds_text:
        return "pooled" if schedule.is_pooled else "split"
    return "pooled" if profile.lane(schedule.target_lane).name in profile.whole_lanes() else "split"


def _lanes(traits: MethodTraits, space: SearchSpace, profile: Profile) -> list[dict[str, str]]:
    """Return `target_lane` and `draft_lane` of every place where the method could run."""
    pairs = profile.split_pairs() if "split" in space.placements else []
    if "pooled" in space.placements and not traits.overlaps:
        pairs += [(lane, lane) for lane in profile.whole_lanes()]
    # A second stream pays only for a draft that overlaps its target (below); otherwise it equals the first stream.
    pairs = [pair for pair in pairs if not any(lane.endswith(SECOND_STREAM) for lane in pair)]
    if "split" in space.placements and traits.overlaps:
        streams = ((lane, f"{lane}{SECOND_STREAM}") for lane in profile.whole_lanes())
        pairs += [pair for pair in streams if profile.contention_of(*pair) is not None]
    targets = list(dict.fromkeys(target for target, _ in pairs))
    if not traits.has_draft_lane:
        return [{"target_lane": lane} for lane in targets]
    if traits.finds_text:  # a text search costs the target's lane nothing, so another lane would not help
        return [{"target_lane": lane, "draft_lane": lane} for lane in targets]
    return [{"target_lane": target_lane, "draft_lane": draft_lane} for target_lane, draft_lane in pairs]


def _settings(
    traits: MethodTraits, space: SearchSpace, profile: Profile, record: AcceptanceRecord
) -> Iterator[_Setting]:
    if traits.window == "none":
        yield partial(Schedule, method=traits.name)
    elif traits.is_tree:
        for tree in record.trees_of(traits.name):
            yield from _trees(tree, space)
    elif not traits.has_draft_model:
        for chain, window in product(record.chains_of(traits.name), _windows(space, record)):
            yield partial(Schedule, method=traits.name, drafter=chain.drafter, num_speculative_tokens=window)
    elif profile.drafter is not None:
        for window, setting in _chains(traits, space, profile, record):
            most = max(0, window - 2)  # streams guess nothing in the first step, nor after the last token
            for num_streams in space.draft_streams or (0, record.num_streams):
                yield partial(setting, draft_streams=min(num_streams, most))


def _windows(space: SearchSpace, record: AcceptanceRecord) -> Sequence[int]:
    if space.windows is not None:
        return space.windows
    recorded = 0 if record.assumed is not None else min(record.max_window, MAX_WINDOW)
    return [*range(1, USUAL_WINDOWS + 1), *reversed(range(recorded, USUAL_WINDOWS, -2))]


def _trees(recorded: RecordedTree, space: SearchSpace) -> Iterator[_Setting]:
    depth, top_k = recorded.depth, recorded.top_k
    is_dynamic = METHODS[recorded.method].has_dynamic_trees
    if depth not in (space.tree_depths or (depth,)) or (is_dynamic and top_k not in (space.tree_top_k or (top_k,))):
        return
    num_nodes = pool_size(depth, top_k) if is_dynamic else len(cut(recorded.paths, MAX_TREE, depth))
    setting = partial(
        Schedule, method=recorded.method, drafter=recorded.drafter, num_speculative_tokens=depth, tree_top_k=top_k
    )
    for size in dict.fromkeys(min(size, num_nodes) for size in space.tree_sizes):
        if size >= depth:
            yield partial(setting, tree_size=size)


def _chains(
    traits: MethodTraits, space: SearchSpace, profile: Profile, record: AcceptanceRecord
) -> Iterator[tuple[int, _Setting]]:
    """Yield (window length, setting) for every way to draft chains with the draft model."""
    rules = space.verification or (("match", "ratio") if record.temperature else ("match",))
    named = partial(Schedule, method=traits.name, drafter=profile.drafter)
    of_rules = [partial(named, verification=rule) for rule in rules if rule in traits.rules]
    if not traits.overlaps:
        for setting, window, with_features in product(of_rules, _windows(space, record), space.exit_features):
            yield window, partial(setting, num_speculative_tokens=window, exit_features=with_features)
        return
    fitted_to = Replay(choosing_part(record))
    # Assumed rates may lack exits. The profile's exits are enumerated then, so that `survey` says what is missing.
    timed = sorted({layer for lane in profile.lanes for layer in lane.exit}) if record.assumed is not None else ()
    for source in space.root_sources:
        exits = (None,) if source == "draft" else space.exit_layers or record.exit_layers or timed
        for setting, window, exit_layer, with_features in product(
            of_rules, _windows(space, record), exits, space.exit_features
        ):
            if with_features and source != "exit":
                continue
            with_source = partial(
                setting,
                root_source=source,
                num_speculative_tokens=window,
                exit_layer=exit_layer,
                exit_features=with_features,
            )
            for budget in _uniform_budgets(source, space, with_source):
                yield window, budget
            if source != "hybrid":
                for roots in _uneven_budgets(window, with_source, space, fitted_to):
                    yield window, partial(with_source, roots_per_row=roots)


def _uniform_budgets(source: RootSource, space: SearchSpace, setting: _Setting) -> list[_Setting]:
    from_exit = [partial(setting, exit_top_k=top_k) for top_k in space.exit_top_k]
    if source == "hybrid":
        return [partial(one, draft_top_k=top_k) for one, top_k in product(from_exit, space.draft_top_k)]
    return list(from_exit) if source == "exit" else [partial(setting, draft_top_k=k) for k in space.draft_top_k]


def _uneven_budgets(window: int, setting: _Setting, space: SearchSpace, fitted_to: Replay) -> Iterator[tuple[int, ...]]:
    """Yield uneven roots per row, fitted to the record of `fitted_to`."""
    schedule = setting(roots_per_row=(1,) * (window + 1), target_lane="target", draft_lane="draft")
    record, exit_layer = fitted_to.record, schedule.exit_layer
    if fitted_to.missing(schedule):
        return  # the schedules with uniform budgets lack the same, and `survey` reports it for them
    ranks = fitted_to.correction_ranks(schedule)
    for num_roots in space.uneven_roots:
        budget = uneven_budget(ranks, num_roots, most_per_row=record.num_candidates(exit_layer) - 1)
        if len(set(budget)) > 1:
            yield budget


def uneven_budget(ranks: Ints, num_roots: int, *, most_per_row: int) -> tuple[int, ...]:
    """Return roots per row, [window + 1]: up to `num_roots` in all, those that are right most often.

    `ranks` counts, [window + 1, rank], how often a round ended after a row with the candidate of that rank.
    """
    budget = [0] * len(ranks)
    limit = min(most_per_row, ranks.shape[1])
    for _ in range(num_roots):
        gains = [int(row[taken]) if taken < limit else 0 for row, taken in zip(ranks, budget, strict=True)]
        best = max(range(len(gains)), key=gains.__getitem__)
        if not gains[best]:
            break
        budget[best] += 1
    return tuple(budget)
