"""Which schedules a profile and a record can answer for, so that a search never asks what was not measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from decoding.record import AcceptanceRecord, RecordedTree
from decoding.schedule import Schedule
from hwprofiles.profile import LaneProfile, LatencyTable, Profile
from sim.cost.round_shape import tree_shape


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordReach:
    """How far an acceptance record reaches.

    Attributes:
        first_context, last_context: cached tokens of the target at the first and last possible verification.
        max_window: longest window.
        exit_layers: recorded exits.
        num_exit_candidates: ids per exit and position, the fewest of all prompts.
        num_alternatives: the draft's own ids per position, likewise.
        has_features: whether rollouts with exit features were recorded.
        num_streams: the draft's own; 0 without.
        last_feature_layer: the deepest target layer that features come from; 0 without features.
        trees: trees whose nodes' places were recorded.
    """

    first_context: int
    last_context: int
    max_window: int
    exit_layers: frozenset[int]
    num_exit_candidates: int
    num_alternatives: int
    has_features: bool
    num_streams: int = 0
    last_feature_layer: int = 0
    trees: tuple[RecordedTree, ...] = ()

    @classmethod
    def of(cls, record: AcceptanceRecord) -> Self:
        """The reach of a record of at least one prompt."""
        prompts = record.prompts
        exits = [ids for prompt in prompts for ids in prompt.exits.values()]
        return cls(
            first_context=min(prompt.prompt_length for prompt in prompts) - 1,
            last_context=max(prompt.prompt_length + len(prompt.text) for prompt in prompts) - 2,
            max_window=record.max_window,
            exit_layers=frozenset(record.exit_layers),
            num_exit_candidates=min((ids.shape[1] for ids in exits), default=0),
            num_alternatives=min(prompt.alternatives.shape[1] for prompt in prompts),
            has_features=all(len(prompt.feature_rollouts) == len(prompt.text) for prompt in prompts),
            num_streams=record.num_streams,
            last_feature_layer=max(record.feature_layers, default=0),
            trees=record.trees,
        )

    def holds(self, schedule: Schedule) -> bool:
        """Whether every answer that `schedule` needs was recorded."""
        if schedule.is_tree:
            return self.tree(schedule) is not None
        return (
            schedule.num_speculative_tokens <= self.max_window
            and (schedule.exit_layer is None or schedule.exit_layer in self.exit_layers)
            and schedule.num_exit_candidates <= self.num_exit_candidates
            and schedule.num_alternatives <= self.num_alternatives
            and schedule.draft_streams <= self.num_streams
            and (self.has_features or not schedule.exit_features)
            and not self._lacks_features_at_exit(schedule)
        )

    def tree(self, schedule: Schedule) -> RecordedTree | None:
        """The recorded trees of a tree schedule, if there are any."""
        return next((tree for tree in self.trees if tree.answers(schedule)), None)

    def _lacks_features_at_exit(self, schedule: Schedule) -> bool:
        """An exit cannot send states of layers behind it."""
        if schedule.exit_layer is None or not schedule.exit_features:
            return False
        return schedule.exit_layer < self.last_feature_layer


def is_priced(schedule: Schedule, profile: Profile, reach: RecordReach) -> bool:
    """Whether `profile` has a measured cost for everything that `schedule` may have to compute.

    Raises:
        ProfileError: the profile does not have the schedule's lanes.
    """
    return all(table is not None and _covers(table, rows, reach) for table, rows in _costs(schedule, profile, reach))


def max_branches(schedule: Schedule) -> int:
    """Most branches that one round of `schedule` can prepare."""
    return sum(schedule.exit_roots_per_row) + sum(schedule.draft_roots_per_row)


def _costs(schedule: Schedule, profile: Profile, reach: RecordReach) -> Iterator[tuple[LatencyTable | None, int]]:
    """(table, most rows asked of it) for every model part of the schedule."""
    target = profile.lane(schedule.target_lane)
    if schedule.is_tree:
        yield from _tree_costs(schedule, target, profile, reach)
        return
    yield target.layer, schedule.num_rows
    yield target.lm_head, schedule.num_rows
    if schedule.exit_layer is not None:
        yield target.exit.get(schedule.exit_layer), schedule.num_rows
    if schedule.draft_lane is not None:
        draft = profile.lane(schedule.draft_lane)
        yield (draft.draft_step_features if schedule.exit_features else draft.draft_step), _draft_rows(schedule)
        if schedule.draft_streams:
            yield draft.draft_step, schedule.draft_streams + 1
            yield draft.draft_streams, schedule.draft_streams


def _tree_costs(
    schedule: Schedule, target: LaneProfile, profile: Profile, reach: RecordReach
) -> Iterator[tuple[LatencyTable | None, int]]:
    recorded = reach.tree(schedule)
    shape = tree_shape(schedule, recorded.paths if recorded is not None else ())
    num_rows = shape.num_drafted + 1
    yield target.layer, num_rows
    yield target.lm_head, num_rows
    drafter = schedule.drafter or ""
    if schedule.draft_lane is None:
        yield target.streams.get(drafter), num_rows
    else:
        most_rows = max(schedule.num_speculative_tokens + 1, *shape.level_rows, 1)
        yield profile.lane(schedule.draft_lane).heads.get(drafter), most_rows


def _draft_rows(schedule: Schedule) -> int:
    """Most rows of one draft step: committed tokens that the draft still has to read, or all branches at once."""
    if not schedule.exit_features:
        return max(2, max_branches(schedule))
    return max(schedule.num_rows, schedule.num_speculative_tokens + max_branches(schedule))


def _covers(table: LatencyTable, most_rows: int, reach: RecordReach) -> bool:
    any_context = len(table.contexts) == 1
    return (
        table.rows[0] == 1
        and most_rows <= table.rows[-1]
        and (any_context or table.contexts[0] <= reach.first_context <= reach.last_context <= table.contexts[-1])
    )
