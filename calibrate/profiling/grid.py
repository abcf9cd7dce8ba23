"""How much is measured: which sizes of which parts, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.errors import ConfigError

USUAL_BRANCHES = 32
"""Most branches of a round unless more are asked for; more do not pay on the devices at hand."""

_BETWEEN = 4
_LEAST_STEP = 16
"""Rows that a draft step has in calibration's own decodings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """The sizes to measure and the repeats.

    Attributes:
        passes: times that all parts of all lanes are visited in turn, so that drift hits all alike.
        least_passes: fewer of them, where time is short, are worth a note.
        repeats: runs of a part at one visit.
        target_rows: rows of a verification.
        part_rows: those of them for which heads and exits are timed alone too.
        draft_rows: rows of a draft step.
        tree_rows: rows of verifications of trees, wider than those of chains.
        head_rows: rows of a step of a head.
        contexts: cached tokens, ascending; a row count outside `wide_rows` is measured at the first only, and
            the others follow from how its neighbours grow.
        prefill_rows: rows of prompts.
        run_tokens: length of the texts decoded.
        head_turns: passes in which each of those of a head is decoded once: they take turns.
    """

    passes: int
    least_passes: int
    repeats: int
    target_rows: tuple[int, ...]
    part_rows: tuple[int, ...]
    draft_rows: tuple[int, ...]
    tree_rows: tuple[int, ...]
    head_rows: tuple[int, ...]
    contexts: tuple[int, ...]
    prefill_rows: tuple[int, ...]
    run_tokens: int
    head_turns: int

    @property
    def wide_rows(self) -> frozenset[int]:
        """Row counts that are measured at every context: the ends of both grids, and one that lies between them."""
        ends = {rows[end] for rows in (self.target_rows, self.draft_rows) for end in (0, -1)}
        return frozenset(ends | ({_BETWEEN} & {*self.target_rows, *self.draft_rows}))


def quick_effort(
    max_window: int, contexts: tuple[int, int], max_tree: int = 0, max_step: int = USUAL_BRANCHES
) -> Effort:
    """Few sizes, as often as time allows, up to trees of `max_tree` nodes and draft steps of `max_step` rows."""
    target_rows = _within((1, 2, 3, 5), max_window + 1)
    draft_rows = _within((1, 2, 4, 8, 16, 32, 64), max(max_step, _LEAST_STEP))
    return Effort(
        passes=12,
        least_passes=2,
        repeats=2,
        target_rows=target_rows,
        part_rows=(target_rows[0], target_rows[-1]),
        draft_rows=draft_rows,
        tree_rows=_beyond(target_rows[-1], (17, max_tree + 1)),
        head_rows=(1, 4, 8, 16) if max_tree else (),
        contexts=_spread(contexts, 2),
        prefill_rows=_prompts(contexts, 2),
        run_tokens=16,
        head_turns=3,
    )


def full_effort(
    max_window: int, contexts: tuple[int, int], max_tree: int = 0, max_step: int = USUAL_BRANCHES
) -> Effort:
    """More sizes, and as many passes in any case."""
    target_rows = _within(tuple(range(1, max_window + 2)), max_window + 1)
    draft_rows = _within((1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64), max(max_step, _LEAST_STEP))
    return Effort(
        passes=5,
        least_passes=5,
        repeats=3,
        target_rows=target_rows,
        part_rows=target_rows,
        draft_rows=draft_rows,
        tree_rows=_beyond(target_rows[-1], (11, 13, 17, 25, max_tree + 1)),
        head_rows=(1, 2, 3, 4, 6, 8, 12, 16) if max_tree else (),
        contexts=_spread(contexts, 3),
        prefill_rows=_prompts(contexts, 3),
        run_tokens=24,
        head_turns=1,
    )


def _within(rows: tuple[int, ...], last: int) -> tuple[int, ...]:
    return (*[count for count in rows if count < last], last)


def _beyond(first: int, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Those between `first` and the last, which is the most."""
    return tuple(sorted({count for count in rows if first < count <= rows[-1]}))


def _spread(contexts: tuple[int, int], count: int) -> tuple[int, ...]:
    """`count` contexts evenly from the first to the last."""
    first, last = contexts
    if not 0 <= first < last:
        msg = f"contexts are {first}..{last}: the first must be at least 0 and below the last"
        raise ConfigError(msg)
    return tuple(sorted({first + (last - first) * step // (count - 1) for step in range(count)}))


def _prompts(contexts: tuple[int, int], count: int) -> tuple[int, ...]:
    """Rows of prompts that leave so many cached tokens; one that leaves none is not read at all."""
    return tuple(rows for rows in _spread(contexts, count) if rows > 0)
