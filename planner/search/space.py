"""The schedules of a search: what may vary, and what of it a profile and a record can predict."""

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
"""Fewest prompts that are halved: a half of one prompt would show no spread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Halves:
    """Places in a record of the texts to fit budgets to and choose on, and of those to judge on."""

    choosing: tuple[int, ...]
    judging: tuple[int, ...]


def halves(record: AcceptanceRecord) -> Halves | None:
    """Return halves that share each kind of prompt, each with all texts of its prompts; None for few prompts."""
    numbers = record.prompt_numbers
    if record.num_prompts < FEWEST:
        return None
    kind_of = {number: prompt.category for number, prompt in zip(numbers, record.prompts, strict=True)}
    kinds = list(kind_of.values())
    order = sorted(kind_of, key=lambda number: kinds.index(kind_of[number]))
    choosing, judging = (
        tuple(place for place, number in enumerate(numbers) if number in half) for half in (order[::2], order[1::2])
    )
    return Halves(choosing=choosing, judging=judging)


def only(record: AcceptanceRecord, places: Sequence[int]) -> AcceptanceRecord:
    """Return the record of some of its prompts."""
    return replace(record, prompts=tuple(record.prompts[place] for place in places))


def choosing_part(record: AcceptanceRecord) -> AcceptanceRecord:
    """Return the record of the prompts to choose on; all prompts where there are no halves."""
    parts = halves(record)
    return record if parts is None else only(record, parts.choosing)


def judging_part(record: AcceptanceRecord) -> AcceptanceRecord:
    """Return the record of the prompts to judge on; all prompts where there are no halves."""
    parts = halves(record)
    return record if parts is None else only(record, parts.judging)


Placement = Literal["split", "pooled"]
USUAL_WINDOWS = 8
"""Windows of up to so many tokens are all searched, and of longer ones every second: each costs as much time."""
_Window = Annotated[int, Field(ge=1, le=MAX_WINDOW)]
TopK = Annotated[int, Field(ge=1, le=64)]
_Layer = Annotated[int, Field(ge=1)]
NumRoots = Annotated[int, Field(ge=1)]
NumStreams = Annotated[int, Field(ge=0, le=8)]
NumNodes = Annotated[int, Field(ge=1, le=MAX_TREE)]
ExactRule = Literal["match", "ratio"]
_Setting = Callable[..., Schedule]
"""A schedule that still lacks some fields, its lanes at least."""


class SearchSpace(UserModel):
    """What a search may vary. The defaults are some hundreds of schedules for each pair of lanes.

    Attributes:
        placements: *split* puts target and draft on lanes of their own, *pooled* on one lane.
        windows: drafted tokens per round, of methods that draft chains; None for up to `USUAL_WINDOWS`, and as many as
            were recorded.
        exit_layers: early exits; None for all that were recorded or assumed, or else measured.
        exit_top_k, draft_top_k: roots per row from the exit, and from the draft.
        uneven_roots: roots per round that are spread to where rounds of the prompts to choose on end.
        exit_features: whether the draft reads the target's hidden states.
        draft_streams: stream tokens of a draft step, as far as a window has room; None for none and all that it has.
        verification: rules for what the draft model drafts, of those that a method has; None for both where texts were
            sampled, else `match`.
        tree_sizes: drafted tokens per round, of methods that draft trees, as far as a tree has nodes.
        tree_depths, tree_top_k: depths of trees, and nodes that dynamic ones expand on each level; None for all that
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
    """Schedules that can be predicted, in a fixed order, and how many cannot, by what is missing."""

    schedules: tuple[Schedule, ...]
    left_out: Mapping[str, int]


def survey(
    space: SearchSpace, profile: Profile, record: AcceptanceRecord, evaluator: Evaluator | None = None
) -> Survey:
    """Return every schedule of `space` by whether the evaluator (of this profile and record) can predict it."""
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
    """Return whether a schedule divides the machine between the models.

    A target alone counts as split on a lane that is a part of another one: the draft's share of the machine is idle.
    """
    if schedule.draft_lane is not None and not schedule.traits.finds_text:
        return "pooled" if schedule.is_pooled else "split"
    return "pooled" if profile.lane(schedule.target_lane).name in profile.whole_lanes() else "split"


def _lanes(traits: MethodTraits, space: SearchSpace, profile: Profile) -> list[dict[str, str]]:
    """Return the lane fields of a schedule for every place where it could run."""
    pairs = profile.split_pairs() if "split" in space.placements else []
    if "pooled" in space.placements and not traits.overlaps:
        pairs += [(lane, lane) for lane in profile.whole_lanes()]
    pairs = [pair for pair in pairs if not any(lane.endswith(SECOND_STREAM) for lane in pair)]  # as on the first
    if "split" in space.placements and traits.overlaps:
        streams = ((lane, f"{lane}{SECOND_STREAM}") for lane in profile.whole_lanes())
        pairs += [pair for pair in streams if profile.contention_of(*pair) is not None]
    targets = list(dict.fromkeys(target for target, _ in pairs))
    if not traits.has_draft_lane:
        return [{"target_lane": lane} for lane in targets]
    if traits.finds_text:  # to search text elsewhere frees nothing
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
            most = max(0, window - 2)  # nothing is guessed in the first step, nor after the last token
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
    """Yield settings of the draft model, with the lengths of their windows."""
    rules = space.verification or (("match", "ratio") if record.temperature else ("match",))
    named = partial(Schedule, method=traits.name, drafter=profile.drafter)
    of_rules = [partial(named, verification=rule) for rule in rules if rule in traits.rules]
    if not traits.overlaps:
        for setting, window, with_features in product(of_rules, _windows(space, record), space.exit_features):
            yield window, partial(setting, num_speculative_tokens=window, exit_features=with_features)
        return
    fitted_to = Replay(choosing_part(record))
    # rates without exits: the profile's are asked for, and refused by name
    priced = sorted({layer for lane in profile.lanes for layer in lane.exit})
    unstated = () if record.assumed is None else tuple(priced)
    for source in space.root_sources:
        exits = (None,) if source == "draft" else space.exit_layers or record.exit_layers or unstated
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
    """Yield uneven roots per row, fitted to the prompts to choose on."""
    schedule = setting(roots_per_row=(1,) * (window + 1), target_lane="target", draft_lane="draft")
    record, exit_layer = fitted_to.record, schedule.exit_layer
    if fitted_to.missing(schedule):
        return  # the uniform budgets say so
    ranks = fitted_to.correction_ranks(schedule)
    for num_roots in space.uneven_roots:
        budget = uneven_budget(ranks, num_roots, most_per_row=record.num_candidates(exit_layer) - 1)
        if len(set(budget)) > 1:
            yield budget


def uneven_budget(ranks: Ints, num_roots: int, *, most_per_row: int) -> tuple[int, ...]:
    """Return the up to `num_roots` roots that are right most often, as roots per row, [window + 1]."""
    budget = [0] * len(ranks)
    limit = min(most_per_row, ranks.shape[1])
    for _ in range(num_roots):
        gains = [int(row[taken]) if taken < limit else 0 for row, taken in zip(ranks, budget, strict=True)]
        best = max(range(len(gains)), key=gains.__getitem__)
        if not gains[best]:
            break
        budget[best] += 1
    return tuple(budget)
