"""Steps of a draft model for timing: of a sequence, of branches, of both at once, and of its streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from decoding.errors import LaneError
from decoding.messages import Window
from decoding.schedule import Schedule
from runtime.arrays import Array
from runtime.drafters.language_model.draft_passes import Proposer
from runtime.wire.channel import to_block
from runtime.wire.measurement import Measurement

if TYPE_CHECKING:
    from runtime.drafters.language_model.drafter import Drafter


def timed_step(drafter: Drafter, measurement: Measurement) -> Callable[[], object]:
    """See `WindowDrafter`; raise `LaneError` if the draft lacks what the step needs."""
    if measurement.part == "draft_streams":
        return _guesses(drafter, measurement)
    rows, context, starts = measurement.rows, measurement.context, measurement.part == "draft_start"
    if measurement.with_features and not drafter.model.config.exit_features:
        raise LaneError("a step with_features cannot be timed: this draft takes none")
    if starts and not measurement.with_features:
        raise LaneError("draft_start is timed with_features only")
    num_branches = 0 if (measurement.num_proposals or rows) == 1 else _each(rows, 1 + measurement.num_guesses)
    if starts:
        num_branches = measurement.num_proposals or 1
    drafter.backend.prepare(
        drafter.model.plan(
            num_slots=context + rows,
            num_prompt=0,
            rows=(max(1, rows - num_branches),),
            with_features=measurement.with_features,
            num_branches=num_branches,
            least_slots=context,
        )
    )
    drafter.prefill([0], schedule=_schedule(), capacity=context + rows)
    drafter.propose = Proposer(drafter.model.output, num_alternatives=measurement.num_alternatives)
    ids, features_TE = _random_ids(drafter, rows), None
    if measurement.with_features:
        width = len(drafter.model.config.exit_features) * drafter.model.decoder.config.hidden_size
        features_TE = _random_states(drafter, rows, width)
    drafter.make_room(context + rows, num_branches)
    drafter.cache.fill_random(context)
    step = _start if starts else _branches if num_branches else _text
    return step(drafter, ids, context, features_TE, num_branches)


def _text(drafter: Drafter, ids: list[int], context: int, features_TE: Array | None, _: int) -> Callable[[], object]:
    def run() -> None:
        drafter.cache.set_length(context)
        drafter.propose(drafter.feed(ids, features_TE).hidden_TD[-1:], [context])

    return run


def _branches(
    drafter: Drafter, ids: list[int], context: int, _: Array | None, num_branches: int
) -> Callable[[], object]:
    """Return a step in which every branch has a row, and one for each guess to verify; all rows propose."""
    drafter.branches.fill_random()
    ids_RT = np.array(ids).reshape(num_branches, -1).tolist()
    positions = list(range(context, context + len(ids_RT[0])))
    positions_RT, branches = [positions] * num_branches, slice(num_branches)

    def run() -> None:
        states = drafter.feed_branches(branches, ids_RT, positions_RT)
        drafter.propose(states.hidden_TD.reshape(-1, states.hidden_TD.shape[-1]), positions * num_branches)

    return run


def _start(
    drafter: Drafter, ids: list[int], context: int, features_TE: Array | None, num_branches: int
) -> Callable[[], object]:
    """Return a step of the window's rows and of the roots of all branches, which propose."""
    num_window = len(ids) - num_branches
    tokens, roots = ids[:num_window], [[token] for token in ids[num_window:]]
    drafter.branches.fill_random()
    drafter.text, drafter.window = [0] * context, Window(tuple(tokens))
    # roots after every row of the window in turn
    positions = [[context + place % (num_window + 1)] for place in range(num_branches)]

    def run() -> None:
        drafter.cached = [0] * context
        drafter.cache.set_length(context)
        states = drafter.feed_with_window(roots, positions, features_TE)
        drafter.propose(states.hidden_TD[:, 0], [position + 1 for [position] in positions])

    return run


def _guesses(drafter: Drafter, measurement: Measurement) -> Callable[[], object]:
    """Return a step of streams, from one row of the sequence or from one row of each branch."""
    rows, context = measurement.rows, measurement.context
    count = measurement.num_guesses or rows
    drafter.prefill([0], schedule=_schedule(count), capacity=context + count)
    width = drafter.model.decoder.config.hidden_size
    if not measurement.num_guesses:
        drafter.cache.fill_random(context)
        entering_1D = _random_states(drafter, 1, width)
        return lambda: drafter.guess(entering_1D, count)
    num_branches = _each(rows, count)
    drafter.make_room(context + count, num_branches)
    drafter.branches.fill_random()
    entering_RD = _random_states(drafter, num_branches, width)
    positions_RJ = [range(context, context + count)] * num_branches
    return lambda: drafter.guess_in_branches(slice(num_branches), entering_RD, positions_RJ)


def _random_ids(drafter: Drafter, count: int) -> list[int]:
    ids: list[int] = np.random.default_rng(0).integers(drafter.model.decoder.config.vocab_size, size=count).tolist()
    return ids


def _random_states(drafter: Drafter, *shape: int) -> Array:
    return drafter.backend.array(to_block(np.random.default_rng(0).standard_normal(shape, np.float32)))


def _each(rows: int, of_branch: int) -> int:
    """Return the number of branches that have `rows` rows together, `of_branch` each."""
    if rows % of_branch:
        raise LaneError(f"{rows} rows cannot be timed: they are no whole number of branches of {of_branch} rows")
    return rows // of_branch


def _schedule(draft_streams: int = 0) -> Schedule:
    return Schedule(
        method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=1, draft_streams=draft_streams
    )
