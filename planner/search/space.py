"""The schedules worth asking about: what may vary, and all of it that a profile and a record can answer for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from decoding.methods import METHODS
from decoding.record import AcceptanceRecord, RecordedTree
from decoding.schedule import DYNAMIC_TREES, MAX_TREE, MAX_WINDOW, TREE_METHODS, Method, RootSource, Schedule
from decoding.tree_shape import cut
from hwprofiles.profile import LaneProfile, Profile
from planner.search.pricing import RecordReach, is_priced
from planner.search.root_budget import correction_ranks, uneven_budget
from sim.cost.round_shape import pool_size

Placement = Literal["split", "pooled"]
Window = Annotated[int, Field(ge=1, le=MAX_WINDOW)]
TopK = Annotated[int, Field(ge=1, le=64)]
Layer = Annotated[int, Field(ge=1)]
NumRoots = Annotated[int, Field(ge=1)]
NumStreams = Annotated[int, Field(ge=0, le=8)]
NumNodes = Annotated[int, Field(ge=1, le=MAX_TREE)]


class SearchSpace(BaseModel):
    """What the search may vary. The defaults are some hundreds of schedules for each pair of lanes.

    Attributes:
        methods: decoding methods.
        placements: *split* puts target and draft on lanes of their own, *pooled* gives one lane everything.
        windows: drafted tokens per round, of methods that draft chains.
        root_sources: where mirror's branches start.
        exit_layers: early exits; None for all that were recorded.
        exit_top_k: roots per row from the exit.
        draft_top_k: roots per row from the draft.
        uneven_roots: roots per round that are spread unevenly, to where the record says rounds end.
        exit_features: whether the draft reads the target's hidden states.
        draft_streams: guesses of the draft's own streams in every step; None for none and all that it has. Fewer
            where a window has no room for so many.
        tree_sizes: drafted tokens per round, of methods that draft trees; a smaller tree that has no more nodes is
            taken as it is.
        tree_depths: depths of trees; None for all that were recorded.
        tree_top_k: nodes that dynamic trees expand on every level; None for all that were recorded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: tuple[Method, ...] = tuple(METHODS)
    placements: tuple[Placement, ...] = ("split", "pooled")
    windows: tuple[Window, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    root_sources: tuple[RootSource, ...] = ("exit", "draft", "hybrid")
    exit_layers: tuple[Layer, ...] | None = None
    exit_top_k: tuple[TopK, ...] = (1, 2, 4, 8)
    draft_top_k: tuple[TopK, ...] = (1, 2, 4)
    uneven_roots: tuple[NumRoots, ...] = (8, 16)
    exit_features: tuple[bool, ...] = (False, True)
    draft_streams: tuple[NumStreams, ...] | None = None
    tree_sizes: tuple[NumNodes, ...] = (4, 6, 8, 12, 16, 24, 32)
    tree_depths: tuple[Window, ...] | None = None
    tree_top_k: tuple[TopK, ...] | None = None


def enumerate_schedules(space: SearchSpace, profile: Profile, record: AcceptanceRecord) -> list[Schedule]:
    """Every schedule of `space` that `profile` and `record` can price, each once, in a fixed order."""
    if not record.prompts:
        return []
    reach = RecordReach.of(record)
    schedules: dict[Schedule, None] = {}
    for method in space.methods:
        for settings in _settings(method, space, profile, record):
            for lanes in _lanes(method, space.placements, profile):
                schedule = Schedule(method=method, **lanes, **settings)
                if reach.holds(schedule) and is_priced(schedule, profile, reach):
                    schedules[schedule] = None
    return list(schedules)


def placement_name(schedule: Schedule, profile: Profile) -> Placement:
    """Whether the schedule divides the machine between the models.

    Plain decoding counts as split on a lane that is only a part of another one: there the machine is divided
    and the draft's share lies idle.

    Raises:
        ProfileError: the profile does not have the schedule's lanes.
    """
    if schedule.draft_lane is not None:
        return "pooled" if schedule.is_pooled else "split"
    return "pooled" if _is_whole(profile.lane(schedule.target_lane), profile) else "split"


def _lanes(method: Method, placements: tuple[Placement, ...], profile: Profile) -> list[dict[str, Any]]:
    """Lane fields of a schedule, for every place it could run; a target alone runs wherever a target could."""
    pairs: list[tuple[str, str]] = []
    if "split" in placements:
        pairs += [(one.name, other.name) for one, other in permutations(profile.lanes, 2) if _are_apart(one, other)]
    if "pooled" in placements and method != "mirror":
        pairs += [(lane.name, lane.name) for lane in profile.lanes if _is_whole(lane, profile)]
    if method in ("autoregressive", "speculative_streaming"):
        return [{"target_lane": target_lane} for target_lane in dict.fromkeys(target for target, _ in pairs)]
    return [{"target_lane": target_lane, "draft_lane": draft_lane} for target_lane, draft_lane in pairs]


def _are_apart(one: LaneProfile, other: LaneProfile) -> bool:
    return not set(one.cores) & set(other.cores)


def _is_whole(lane: LaneProfile, profile: Profile) -> bool:
    """Whether no other lane has all the cores of this one and more."""
    return not lane.cores or not any(set(lane.cores) < set(other.cores) for other in profile.lanes)


def _settings(
    method: Method, space: SearchSpace, profile: Profile, record: AcceptanceRecord
) -> Iterator[dict[str, Any]]:
    """Fields of a schedule that do not depend on its lanes."""
    if method == "autoregressive":
        yield {}
    elif method in TREE_METHODS:
        for recorded in record.trees:
            if recorded.method == method:
                yield from _trees(recorded, space)
    elif profile.drafter is not None:
        asked = space.draft_streams or (0, record.num_streams)
        for fields, num_streams in product(_chains(method, space, record), asked):
            # the first step guesses nothing and the last token is none to guess behind: no room for more
            most = max(0, fields["num_speculative_tokens"] - 2)
            yield fields | {"draft_streams": min(num_streams, most), "drafter": profile.drafter}


def _trees(recorded: RecordedTree, space: SearchSpace) -> Iterator[dict[str, Any]]:
    depth, top_k = recorded.depth, recorded.top_k
    is_dynamic = recorded.method in DYNAMIC_TREES
    if depth not in (space.tree_depths or (depth,)) or (is_dynamic and top_k not in (space.tree_top_k or (top_k,))):
        return
    num_nodes = pool_size(depth, top_k) if is_dynamic else len(cut(recorded.paths, MAX_TREE, depth))
    for size in dict.fromkeys(min(size, num_nodes) for size in space.tree_sizes):
        if size >= depth:
            fields = {"num_speculative_tokens": depth, "tree_size": size, "tree_top_k": top_k}
            yield fields | {"drafter": recorded.drafter}


def _chains(method: Method, space: SearchSpace, record: AcceptanceRecord) -> Iterator[dict[str, Any]]:
    reach = RecordReach.of(record)
    windows = [window for window in space.windows if window <= reach.max_window]
    features = [wanted for wanted in space.exit_features if reach.has_features or not wanted]
    if method == "speculative":
        for window, with_features in product(windows, features):
            yield {"num_speculative_tokens": window, "exit_features": with_features}
        return
    layers = sorted(reach.exit_layers.intersection(space.exit_layers or reach.exit_layers))
    for source in space.root_sources:
        exits = (None,) if source == "draft" else layers
        for window, exit_layer, with_features in product(windows, exits, features):
            if with_features and source != "exit":
                continue
            setting = _MirrorSetting(source, window, exit_layer, with_features)
            for budget in (*_uniform_budgets(source, space), *_uneven_budgets(setting, space, reach, record)):
                yield setting.fields() | budget


class _MirrorSetting(NamedTuple):
    source: RootSource
    window: int
    exit_layer: int | None
    with_features: bool

    def fields(self) -> dict[str, Any]:
        return {
            "root_source": self.source,
            "num_speculative_tokens": self.window,
            "exit_layer": self.exit_layer,
            "exit_features": self.with_features,
        }


def _uniform_budgets(source: RootSource, space: SearchSpace) -> list[dict[str, Any]]:
    from_exit = [{"exit_top_k": top_k} for top_k in space.exit_top_k]
    from_draft = [{"draft_top_k": top_k} for top_k in space.draft_top_k]
    if source == "hybrid":
        return [one | other for one, other in product(from_exit, from_draft)]
    return from_exit if source == "exit" else from_draft


def _uneven_budgets(
    setting: _MirrorSetting, space: SearchSpace, reach: RecordReach, record: AcceptanceRecord
) -> Iterator[dict[str, Any]]:
    """Budgets that differ by row; one that comes out even is left to the uniform ones."""
    if setting.source == "hybrid" or not space.uneven_roots:
        return
    ranks = correction_ranks(record, setting.window, with_features=setting.with_features, exit_layer=setting.exit_layer)
    num_candidates = reach.num_alternatives if setting.exit_layer is None else reach.num_exit_candidates
    for num_roots in space.uneven_roots:
        budget = uneven_budget(ranks, num_roots, most_per_row=num_candidates - 1)
        if len(set(budget)) > 1:
            yield {"roots_per_row": budget}
