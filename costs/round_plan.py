"""What the rounds of a schedule compute: parts, lanes and rows. Worked out here and nowhere else.

Over all drafted tokens and one row more, the target computes ::

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
"""Steps of a draft model by what they compute:

- `one_row`: one token, of a rollout or to finish a branch;
- `last_drafted`: the window's last token, before branches begin;
- `draft_roots`, `exit_roots`, `all_roots`: the first token of every branch with such roots;
- `window_and_roots`: the same of exit-sourced branches with exit features, which read the window again;
- `draft_later`, `exit_later`, `all_later`: the tokens after it, and the guesses that streams of the draft made for it.
"""

STARTS: tuple[StepKind, ...] = ("draft_roots", "all_roots", "exit_roots", "window_and_roots")
"""First steps of branches: the lane did something else before."""

DRAFT_STEPS: tuple[StepKind, ...] = ("draft_roots", "all_roots", "draft_later", "all_later")
"""Steps that take the branches of draft-sourced roots further."""

EXIT_STEPS: tuple[StepKind, ...] = ("all_roots", "exit_roots", "window_and_roots", "all_later", "exit_later")
"""Steps that take the branches of exit-sourced roots further."""

LATER: Mapping[StepKind, StepKind] = {
    "draft_roots": "draft_later",
    "all_roots": "all_later",
    "exit_roots": "exit_later",
}
"""The kind of the steps that follow a first step of branches, by its kind."""

TARGET_WORK = frozenset({Work.VERIFY, Work.PREFIX, Work.SUFFIX, Work.STREAM})
DRAFT_WORK = frozenset({Work.ROLLOUT_STEP, Work.BRANCH_STEP, Work.FINISH_STEP})

MOST_PLANS = 4096
"""Number of cached plans: the same schedules are predicted on many machines, and twice on each."""

LAYER, LM_HEAD = Part("layer"), Part("lm_head")
DRAFT_STEP, DRAFT_STREAMS = Part("draft_step"), Part("draft_streams")
DRAFT_START, DRAFT_READS = Part("draft_start"), Part("draft_reads")


class RoundShape(NamedTuple):
    """How wide a round's operations are.

    Attributes:
        num_drafted: drafted tokens of the widest window.
        num_exit_roots: exit-sourced branches; of `hybrid` an estimate, without those that the draft has.
        level_rows: rows of each step that drafts a tree, after the first one.
        branch_steps: steps after which branches are finished; None for one for each of their tokens.
    """

    num_drafted: int
    num_exit_roots: int = 0
    level_rows: tuple[int, ...] = ()
    branch_steps: int | None = None


class Operation(NamedTuple):
    """A target operation: its name in a trace, the number of calls of each part, and the rows of every call."""

    work: Work
    calls: Mapping[Part, int]
    rows: int


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """The operations of a schedule's rounds.

    Attributes:
        draft_lane: the target's where nothing drafts apart from it.
        segments: the target's operations: with an exit the prefix and then the suffix, which every round does both;
            else a verification for each width of window, of which a round does one.
        widths: drafted tokens of the windows that rounds may have, ascending; segments are in this order.
        streams: what drafting adds to each segment, where the target drafts itself.
        step: what is called to draft; None where nobody does. Branches have parts of their own, see `part_of`.
        step_rows: rows of the steps of a draft model, by kind.
        most_rows: the same of the widest steps that a round could come to: where draft and exit name the same roots
            steps are narrower, and how often they do only a record tells.
        unread: committed tokens before the last one that a rollout has to read in its first step, by the number of
            drafted tokens accepted in the round before; empty without a draft lane.
        later_rows: rows of a rollout's steps after its first one.
        num_streams, branch_guesses: guesses of a step of the draft, and of every branch after the first step, at most.
        branch_steps: steps after which branches are finished.
        more_rows: tokens after the first one that a rollout's first step drafts too.
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

        Raises `ConfigError` where the exit does not lie below the target's last layer.
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
        """Rows of a rollout's first step, by the tokens read before the last committed one; none without a drafter."""
        return tuple(1 + self.more_rows + unread for unread in range(max(self.unread, default=-1) + 1))

    @property
    def drafting_parts(self) -> tuple[Part, ...]:
        """The parts that are called to draft, the one of most steps first."""
        if self.step is None:
            return ()
        of_streams = (DRAFT_STEP, DRAFT_STREAMS) if self.num_streams else ()
        return tuple(dict.fromkeys((self.step, *map(self.part_of, self.step_rows), *of_streams)))

    def part_of(self, kind: StepKind) -> Part:
        """Return the part that a kind of step calls. Drafted tokens are fed without features."""
        assert self.step is not None, "a step of a draft that is not there"
        if kind == "one_row":
            return self.step
        return DRAFT_START if kind == "window_and_roots" else DRAFT_STEP

    def calls_of(self, kind: StepKind, rows: int) -> tuple[tuple[Part, int], ...]:
        """Return the calls of a step of `rows` rows, each with its own rows; with guesses also that of the streams."""
        step = (self.part_of(kind), rows)
        if not self.branch_guesses or kind not in LATER.values():
            return (step,)
        num_branches = rows // (1 + self.branch_guesses)
        return step, (DRAFT_STREAMS, rows - num_branches)

    @cached_property
    def demands(self) -> tuple[tuple[str, Part, int], ...]:
        """Every part that is ever called, with its lane and rows."""
        return tuple(dict.fromkeys(self._demands()))

    def _demands(self) -> Iterator[tuple[str, Part, int]]:
        for operation in self.segments:
            parts = (*operation.calls, self.streams) if self.streams else operation.calls
            yield from ((self.target_lane, part, operation.rows) for part in parts)
        if self.step is not None and self.streams is None:
            for kind, count in chain(self.step_rows.items(), self.most_rows.items()):
                yield from ((self.draft_lane, part, rows) for part, rows in self.calls_of(kind, count))
            of_rollouts = sorted({*self.first_rows, *self.later_rows})
            yield from ((self.draft_lane, self.step, count) for count in of_rollouts)
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
    """Return the calls of every part in one operation of a schedule, all of which have its rows."""
    if work not in DRAFT_WORK:
        streams = {Part("streams", drafter=schedule.drafter): 1} if work is Work.STREAM else {}
        return target_calls(schedule, work, num_layers) | streams
    if work is Work.BRANCH_STEP:
        return {DRAFT_START if starts_branches(schedule, rows) else DRAFT_STEP: 1}
    step = drafting_part(schedule)
    assert step is not None, "a step of a draft that is not there"
    return {step: 1}


def target_calls(schedule: Schedule, work: Work, num_layers: int) -> dict[Part, int]:
    """Return the calls of every part in an operation of the target, without those of its streams."""
    exit_layer = schedule.exit_layer or 0
    if work is Work.PREFIX:
        return {LAYER: exit_layer, Part("exit", exit_layer): 1}
    return {LAYER: num_layers - (exit_layer if work is Work.SUFFIX else 0), LM_HEAD: 1}


def starts_branches(schedule: Schedule, rows: int) -> bool:
    """Return whether a step of branches reads the window with features too: it has more rows than there are roots."""
    return schedule.exit_features and rows > sum(schedule.exit_roots_per_row)


def drafting_part(schedule: Schedule) -> Part | None:
    """Return the part that is called to draft; None where nobody drafts."""
    traits = schedule.traits
    if traits.drafts == "nobody":
        return None
    if traits.drafts_itself:
        return Part("streams", drafter=schedule.drafter)
    if not traits.has_draft_model:
        return Part("heads", drafter=schedule.drafter)
    return Part("draft_step_features") if schedule.exit_features else DRAFT_STEP


def step_rows(schedule: Schedule, num_exit_roots: int) -> dict[StepKind, int]:
    """Return the rows of every kind of step that the schedule's draft model can come to."""
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
    """Return the committed tokens that the drafter has not read yet, by the tokens accepted last; see `RoundPlan`.

    A drafter that reads features reads every token of the last round again, with its features. Another draft has never
    read the last token of a window that was accepted whole, unless it has fed that to its branches. Prompt lookup reads
    without rows.
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
    """Return the drafted tokens of the windows that rounds may have, ascending.

    A target that drafts itself has nothing to verify at first; some windows may be short or empty.
    """
    if schedule.traits.drafts_itself:
        return 0, shape.num_drafted
    if schedule.traits.varies:
        return tuple(range(shape.num_drafted + 1))
    return (shape.num_drafted,)


def pool_size(depth: int, top_k: int) -> int:
    """Return the nodes that a dynamic tree is cut from: top_k below the root, and below top_k nodes of each level."""
    return top_k + (depth - 1) * top_k**2
