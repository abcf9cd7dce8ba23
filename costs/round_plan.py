"""The operations of a schedule's rounds: which model parts they call, on which lanes and over how many rows.

The target computes one row for each drafted token and one more, by these calls ::

    verify = num_layers * layer + lm_head         prefix = exit_layer * layer + exit
    suffix = (num_layers - exit_layer) * layer + lm_head
    stream = verify + streams
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Literal, NamedTuple

from costs.cost_model import Part
from decoding.errors import ConfigError
from decoding.schedule import Schedule
from decoding.trace import Work
from decoding.tree_shape import Path, cut, level_rows

StepKind = Literal[
    "one_row",
    "last_drafted",
    "draft_roots",
    "all_roots",
    "exit_roots",
    "window_and_roots",
    "draft_later",
    "all_later",
    "exit_later",
]
"""Kinds of a draft model's step, by the rows that it computes:

- `one_row`: one token, in a rollout or to finish a branch;
- `last_drafted`: the last token of the window, before branches begin;
- `draft_roots`, `exit_roots`, `all_roots`: the roots of all branches from that source, or from both;
- `window_and_roots`: the window with exit features, and the roots from the exit;
- `draft_later`, `exit_later`, `all_later`: the next token of each of these branches, and its streams' guesses.
"""

STARTS: tuple[StepKind, ...] = ("draft_roots", "all_roots", "exit_roots", "window_and_roots")
"""First steps of branches, before which the lane did other work."""

DRAFT_STEPS: tuple[StepKind, ...] = ("draft_roots", "all_roots", "draft_later", "all_later")
"""Steps that extend the branches of draft-sourced roots."""

EXIT_STEPS: tuple[StepKind, ...] = ("all_roots", "exit_roots", "window_and_roots", "all_later", "exit_later")
"""Steps that extend the branches of exit-sourced roots."""

LATER: Mapping[StepKind, StepKind] = {
    "draft_roots": "draft_later",
    "all_roots": "all_later",
    "exit_roots": "exit_later",
}
"""From the kind of a first step of branches to the kind of the steps after it."""

TARGET_WORK = frozenset({Work.VERIFY, Work.PREFIX, Work.SUFFIX, Work.STREAM})
DRAFT_WORK = frozenset({Work.ROLLOUT_STEP, Work.BRANCH_STEP, Work.FINISH_STEP})

MOST_PLANS = 4096
"""Number of cached plans; the same schedules are predicted on many machines, and twice on each."""

LAYER, LM_HEAD = Part("layer"), Part("lm_head")
DRAFT_STEP, DRAFT_STREAMS = Part("draft_step"), Part("draft_streams")
DRAFT_START, DRAFT_READS = Part("draft_start"), Part("draft_reads")


class RoundShape(NamedTuple):
    """The sizes of a round that do not follow from its schedule alone.

    Attributes:
        num_drafted: drafted tokens of the widest window.
        num_exit_roots: number of exit-sourced branches; for `hybrid` an estimate, without those that the draft has too.
        level_rows: rows of each step that drafts a tree, after the first one.
        branch_steps: number of steps after which branches are complete; None for one step per token.
    """

    num_drafted: int
    num_exit_roots: int = 0
    level_rows: tuple[int, ...] = ()
    branch_steps: int | None = None


class Operation(NamedTuple):
    """An operation of the target: its kind, the number of calls of each part, and the rows of every call."""

    work: Work
    calls: Mapping[Part, int]
    rows: int


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """The operations of a schedule's rounds.

    Attributes:
        draft_lane: the target's lane if the schedule has no draft lane.
        segments: the target's operations. With an exit: the prefix and the suffix, both in every round. Else: a
            verification for each of `widths`, one of them in a round.
        widths: numbers of drafted tokens that windows may have, ascending.
        streams: the part that drafts in each segment, if the target drafts for itself.
        step: the part that a step of drafting calls; None without a drafter. For branches see `part_of`.
        step_rows: rows of a draft model's steps, by kind.
        most_rows: the same for rounds in which draft and exit name no root in common, which have the widest steps; how
            often they do name one, only a record tells.
        unread: number of committed tokens before the last that the first step of a rollout reads, indexed by the
            number of drafted tokens accepted in the round before; empty without a draft lane.
        later_rows: rows of each step of a rollout after the first.
        num_streams, branch_guesses: most guesses of streams in a step of a rollout, and in a branch's later steps.
        branch_steps: number of steps after which branches are complete.
        more_rows: tokens after the first one that the first step of a rollout also drafts.
    """

    target_lane: str
    draft_lane: str
    segments: tuple[Operation, ...]
    widths: tuple[int, ...]
    streams: Part | None
    step: Part | None
    step_rows: Mapping[StepKind, int]
    most_rows: Mapping[StepKind, int]
    unread: tuple[int, ...]
    later_rows: tuple[int, ...]
    num_streams: int
    branch_guesses: int
    branch_steps: int
    more_rows: int

    @classmethod
    @lru_cache(MOST_PLANS)
    def of(cls, schedule: Schedule, shape: RoundShape, num_layers: int) -> "RoundPlan":
        """Return the plan of `schedule`, whose rounds have this shape, on a target of `num_layers` layers.

        Raises `ConfigError` if the exit is not before the target's last layer.
        """
        widths = window_widths(schedule, shape)
        part = drafting_part(schedule)
        return cls(
            target_lane=schedule.target_lane,
            draft_lane=schedule.draft_lane or schedule.target_lane,
            segments=_segments(schedule, widths, num_layers),
            widths=widths,
            streams=part if schedule.traits.drafts_itself else None,
            step=part,
            step_rows=step_rows(schedule, shape.num_exit_roots),
            most_rows=step_rows(schedule, sum(schedule.exit_roots_per_row)),
            unread=_unread(schedule),
            later_rows=_later_rows(schedule, shape),
            num_streams=schedule.draft_streams,
            branch_guesses=schedule.branch_guesses,
            branch_steps=shape.branch_steps or schedule.num_speculative_tokens,
            more_rows=schedule.num_speculative_tokens - 1 if schedule.traits.drafts_block else 0,
        )

    @cached_property
    def first_rows(self) -> tuple[int, ...]:
        """Rows of a rollout's first step, by the number of unread tokens before the last one; empty without drafter."""
        return tuple(1 + self.more_rows + unread for unread in range(max(self.unread, default=-1) + 1))

    @property
    def drafting_parts(self) -> tuple[Part, ...]:
        """The parts that drafting calls, that of most steps first."""
        if self.step is None:
            return ()
        of_streams = (DRAFT_STEP, DRAFT_STREAMS) if self.num_streams else ()
        return tuple(dict.fromkeys((self.step, *map(self.part_of, self.step_rows), *of_streams)))

    def part_of(self, kind: StepKind) -> Part:
        """Return the part that a kind of step calls; branches read their own tokens without features."""
        assert self.step is not None, "a step without a drafter"
        if kind == "one_row":
            return self.step
        return DRAFT_START if kind == "window_and_roots" else DRAFT_STEP

    def calls_of(self, kind: StepKind, rows: int) -> tuple[tuple[Part, int], ...]:
        """Return the parts that a step of `rows` rows calls, with their rows: the draft model, and any streams."""
        step = (self.part_of(kind), rows)
        if not self.branch_guesses or kind not in LATER.values():
            return (step,)
        num_branches = rows // (1 + self.branch_guesses)
        return step, (DRAFT_STREAMS, rows - num_branches)

    @cached_property
    def demands(self) -> tuple[tuple[str, Part, int], ...]:
        """All calls that rounds can make: lane, part and rows."""
        return tuple(dict.fromkeys(self._demands()))

    def _demands(self) -> Iterator[tuple[str, Part, int]]:
        for operation in self.segments:
            parts = (*operation.calls, self.streams) if self.streams else operation.calls
            yield from ((self.target_lane, part, operation.rows) for part in parts)
        if self.step is not None and self.streams is None:
            for kind, count in chain(self.step_rows.items(), self.most_rows.items()):
                yield from ((self.draft_lane, part, rows) for part, rows in self.calls_of(kind, count))
            rollout_rows = sorted({*self.first_rows, *self.later_rows})
            yield from ((self.draft_lane, self.step, count) for count in rollout_rows)
        for count in range(1, self.num_streams + 1):
            yield self.draft_lane, DRAFT_STEP, count + 1
            yield self.draft_lane, DRAFT_STREAMS, count


def _segments(schedule: Schedule, widths: tuple[int, ...], num_layers: int) -> tuple[Operation, ...]:
    exit_layer = schedule.exit_layer
    if exit_layer is None:
        work = Work.STREAM if schedule.traits.drafts_itself else Work.VERIFY
        return tuple(Operation(work, target_calls(schedule, work, num_layers), width + 1) for width in widths)
    if exit_layer >= num_layers:
        raise ConfigError(
            f"exit_layer is {exit_layer}, but the profile's target has {num_layers} layers: 1..{num_layers - 1}"
        )
    works = (Work.PREFIX, Work.SUFFIX)
    return tuple(Operation(work, target_calls(schedule, work, num_layers), widths[-1] + 1) for work in works)


def operation_calls(schedule: Schedule, work: Work, rows: int, num_layers: int) -> Mapping[Part, int]:
    """Return the number of calls of each part in an operation of `rows` rows."""
    if work not in DRAFT_WORK:
        streams = {Part("streams", drafter=schedule.drafter): 1} if work is Work.STREAM else {}
        return target_calls(schedule, work, num_layers) | streams
    if work is Work.BRANCH_STEP:
        return {DRAFT_START if starts_branches(schedule, rows) else DRAFT_STEP: 1}
    step = drafting_part(schedule)
    assert step is not None, "a step without a drafter"
    return {step: 1}


def target_calls(schedule: Schedule, work: Work, num_layers: int) -> dict[Part, int]:
    """Return the number of calls of each part in an operation of the target, without streams."""
    exit_layer = schedule.exit_layer or 0
    if work is Work.PREFIX:
        return {LAYER: exit_layer, Part("exit", exit_layer): 1}
    return {LAYER: num_layers - (exit_layer if work is Work.SUFFIX else 0), LM_HEAD: 1}


def starts_branches(schedule: Schedule, rows: int) -> bool:
    """Return whether a step of branches reads the window with features, and so has more rows than there are roots."""
    return schedule.exit_features and rows > sum(schedule.exit_roots_per_row)


def drafting_part(schedule: Schedule) -> Part | None:
    """Return the part that a step of drafting calls; None for plain decoding."""
    traits = schedule.traits
    if traits.drafts == "nobody":
        return None
    if traits.drafts_itself:
        return Part("streams", drafter=schedule.drafter)
    if not traits.has_draft_model:
        return Part("heads", drafter=schedule.drafter)
    return Part("draft_step_features") if schedule.exit_features else DRAFT_STEP


def step_rows(schedule: Schedule, num_exit_roots: int) -> dict[StepKind, int]:
    """Return the rows of every kind of step that the schedule's draft model makes."""
    if not schedule.traits.has_draft_model:
        return {}
    num_draft_roots = sum(schedule.draft_roots_per_row)
    rows: dict[StepKind, int] = {"one_row": 1}
    if schedule.traits.overlaps and not schedule.exit_features:
        rows["last_drafted"] = 1
    if schedule.root_source in ("draft", "hybrid"):
        rows["draft_roots"] = num_draft_roots
    if schedule.root_source == "hybrid":
        rows["all_roots"] = num_draft_roots + num_exit_roots
    if schedule.uses_exit:
        rows["exit_roots"] = num_exit_roots
    if schedule.root_source == "exit" and schedule.exit_features:
        rows["window_and_roots"] = schedule.num_speculative_tokens + num_exit_roots
    return rows | {later: rows[kind] * (1 + schedule.branch_guesses) for kind, later in LATER.items() if kind in rows}


def _unread(schedule: Schedule) -> tuple[int, ...]:
    """Return `RoundPlan.unread`.

    A drafter that reads features reads all accepted tokens again, with their features. Another draft model has not read
    the last token of a window, which matters if the window is accepted whole; with branches it has read it for them.
    Prompt lookup computes no rows.
    """
    traits, most = schedule.traits, schedule.num_speculative_tokens
    if not traits.has_draft_lane:
        return ()
    if schedule.reads_features:
        return tuple(range(most + 1))
    return (0,) * most + (int(traits.has_draft_model and not traits.overlaps),)


def _later_rows(schedule: Schedule, shape: RoundShape) -> tuple[int, ...]:
    if schedule.is_tree:
        return shape.level_rows
    return (1,) * (schedule.num_speculative_tokens - 1) if schedule.traits.has_draft_model else ()


def tree_shape(schedule: Schedule, paths: Sequence[Path]) -> RoundShape:
    """Return the shape of a tree schedule's rounds; `paths` are the nodes of a static tree."""
    depth, top_k = schedule.num_speculative_tokens, schedule.tree_top_k
    if schedule.traits.has_dynamic_trees:
        return RoundShape(min(schedule.tree_size, pool_size(depth, top_k)), level_rows=(top_k,) * (depth - 1))
    nodes = cut(paths, schedule.tree_size, depth)
    return RoundShape(len(nodes), level_rows=level_rows(nodes)[1:] if schedule.traits.drafts_by_level else ())


def window_widths(schedule: Schedule, shape: RoundShape) -> tuple[int, ...]:
    """Return the numbers of drafted tokens that windows may have, ascending.

    A target that drafts for itself verifies an empty window in its first pass; windows of some methods vary in length.
    """
    if schedule.traits.drafts_itself:
        return 0, shape.num_drafted
    if schedule.traits.varies:
        return tuple(range(shape.num_drafted + 1))
    return (shape.num_drafted,)


def pool_size(depth: int, top_k: int) -> int:
    """Return how many nodes a dynamic tree is cut from: top_k children of the root, and of top_k nodes per level."""
    return top_k + (depth - 1) * top_k**2
