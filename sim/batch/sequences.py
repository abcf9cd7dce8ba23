"""The rounds of sequences that decode together: each goes its own way, and all of them through round n at once.

A sequence whose outcome no branch had has no window in the next round: it verifies its own next token, a single row,
while the draft prepares for what follows that. So which rounds a sequence goes through does not depend on the others,
and a batch is laid out before anything of it is timed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import Ints
from decoding.schedule import Schedule
from sim.acceptance.acceptance_model import MISS
from sim.acceptance.replay import Everywhere, Replay


class BatchRounds(NamedTuple):
    """All rounds of all sequences; arrays [rounds], sequence by sequence in order.

    Attributes:
        sequence: which one, from 0.
        number: of the round within its sequence, from 0.
        position: new tokens committed before it.
        context: committed tokens, prompt included, minus one.
        num_drafted: tokens in the window.
        num_accepted: of them.
        num_committed: tokens appended.
        branch: which source's branch has the outcome; `MISS` where nothing prepares any, and in last rounds.
        is_last: whether the sequence ends with it.
    """

    sequence: Ints
    number: Ints
    position: Ints
    context: Ints
    num_drafted: Ints
    num_accepted: Ints
    num_committed: Ints
    branch: Ints
    is_last: NDArray[np.bool_]

    @property
    def is_hit(self) -> NDArray[np.bool_]:
        """Whether a branch has the outcome."""
        is_hit: NDArray[np.bool_] = self.branch != MISS
        return is_hit

    def some(self, which: NDArray[np.bool_]) -> BatchRounds:
        """Those of them alone."""
        return BatchRounds._make(values[which] for values in self)


def batch_rounds(schedule: Schedule, acceptance: Replay, max_new_tokens: int | None) -> BatchRounds:
    """The rounds of every prompt under a schedule."""
    if schedule.traits.overlaps:
        return _with_branches(schedule, acceptance, max_new_tokens)
    walk = acceptance.walk(schedule, max_new_tokens)
    first = np.flatnonzero(walk.is_first)
    return BatchRounds(
        sequence=walk.prompt,
        number=np.arange(len(walk.prompt)) - first[walk.prompt],
        position=walk.position,
        context=walk.context,
        num_drafted=walk.num_drafted,
        num_accepted=walk.num_accepted,
        num_committed=walk.num_committed,
        branch=np.full(len(walk.prompt), MISS),
        is_last=walk.is_last,
    )


def _with_branches(schedule: Schedule, acceptance: Replay, max_new_tokens: int | None) -> BatchRounds:
    """Every sequence at once, round by round; the first window is drafted before anything is verified."""
    texts = acceptance.everywhere(schedule, max_new_tokens)
    position = np.zeros(len(texts.starts), dtype=np.int64)
    has_window = np.ones(len(position), dtype=np.bool_)
    going: Ints = np.arange(len(position))
    rounds: list[BatchRounds] = []
    while len(going):
        one = _round(schedule, acceptance, texts, (going, position[going], has_window[going]), len(rounds))
        rounds.append(one)
        position[going] += one.num_committed
        has_window[going] = one.is_hit
        going = going[~one.is_last]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in rounds]) for name in BatchRounds._fields
    }
    order = np.lexsort((columns["number"], columns["sequence"]))
    return BatchRounds(**{name: values[order] for name, values in columns.items()})


def _round(
    schedule: Schedule, acceptance: Replay, texts: Everywhere, state: tuple[Ints, Ints, NDArray[np.bool_]], number: int
) -> BatchRounds:
    """Round `number` of the sequences going on, from their positions, some of them without a window."""
    sequence, position, has_window = state
    at, left = texts.starts[sequence] + position, texts.lengths[sequence] - position
    accepted = np.where(has_window, texts.num_accepted[at], 0)
    branches = texts.branches[at]
    alone = np.flatnonzero(~has_window)
    branches[alone] = acceptance.branches_of_no_window(schedule, at[alone])
    is_last = accepted + 1 >= left
    return BatchRounds(
        sequence=sequence,
        number=np.full(len(sequence), number),
        position=position,
        context=texts.prompt_lengths[sequence] + position - 1,
        num_drafted=np.where(has_window, schedule.num_speculative_tokens, 0),
        num_accepted=accepted,
        num_committed=np.minimum(accepted + 1, left),
        branch=np.where(is_last, MISS, branches),
        is_last=is_last,
    )
