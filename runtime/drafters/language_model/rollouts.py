"""What a draft model drafts after every prefix of a text, for acceptance records and for judging training.

Every prefix is a branch (`runtime.backends.kv_memory.BranchCaches`), so the results have the bits of a lane's drafts.
Shapes: legend of `runtime.models.decoder`; P prefixes, R of them in a block, F alternatives, N drafted tokens, J
streams, E width of the exit features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Array, as_array, concatenated, inference, stacked, zeros
from runtime.backends.backend import prefill_pieces
from runtime.backends.kv_memory import BranchCaches, SequenceCache
from runtime.drafters.language_model.draft_passes import DraftPasses, DraftStates
from runtime.models.vocabulary import ranked_ids

_BLOCK_ROWS = 32
"""Prefixes drafted at once, and rows of the text after its prompt that are read at once: as few as in a lane."""


class Rollouts(NamedTuple):
    """Drafted target ids; row i is about the prefix `ids[: start + i]`.

    `tokens` [P, N] are the greedy draft, `alternatives` [P, N, F] the best ids at each drafted position, best first;
    `stream_hits` [P, N] says how many tokens in a row the streams guess right after each drafted token.
    """

    tokens: NDArray[Any]
    alternatives: NDArray[Any]
    stream_hits: NDArray[Any]


@inference
def rollouts_everywhere(
    draft: DraftPasses,
    ids: Sequence[int],
    *,
    start: int,
    num_tokens: int,
    num_alternatives: int,
    features_TE: Array | None,
) -> Rollouts:
    """Draft `num_tokens` tokens after each of the prefixes `ids[:start]`, ..., `ids[: len(ids) - 1]`.

    `ids` is a committed text, `start` the length of its prompt, `num_alternatives` the number of best ids to return for
    each drafted position. `features_TE` are those of `normalise_features` for at least `len(ids) - 2` positions of the
    text; drafted positions have none. Raises `ValueError` if `start` is not the length of a prefix.
    """
    if not 1 <= start < len(ids):
        raise ValueError(f"start {start} is outside 1..{len(ids) - 1}")
    backend, num_branches = draft.on_a_backend(), min(_BLOCK_ROWS, len(ids) - start)
    draft.output.add_prompt_tokens(ids[:start])
    num_slots = len(ids) + num_tokens + draft.num_streams
    backend.prepare(
        draft.plan(
            num_slots=num_slots,
            num_prompt=start,
            rows=(_BLOCK_ROWS,),
            with_features=features_TE is not None,
            num_branches=num_branches,
        )
    )
    text, branches = backend.new_text(), backend.new_branches(num_branches)
    text.start(len(ids) - 1)
    branches.start(num_slots)
    states = _encode(draft, ids, start, features_TE, text)
    blocks, guesses = [], []
    for first in range(start, len(ids), _BLOCK_ROWS):
        lengths = range(first, min(first + _BLOCK_ROWS, len(ids)))
        branches.follow(text, num_final=first, stop=lengths[-1])
        last = states.at(slice(lengths[0] - 1, lengths[-1]))
        block, guessed = _roll_out(draft, last, lengths, branches, (num_tokens, num_alternatives))
        blocks.append(as_array(block))
        guesses.append(as_array(guessed))
    alternatives = np.concatenate(blocks)
    tokens = alternatives[..., 0]
    return Rollouts(tokens=tokens, alternatives=alternatives, stream_hits=_hits(tokens, np.concatenate(guesses)))


def _encode(
    draft: DraftPasses, ids: Sequence[int], start: int, features_TE: Array | None, text: SequenceCache
) -> DraftStates:
    """Read all tokens but the last into the cache, the prompt in the same calls as a lane; return their states."""
    count = len(ids) - 1
    ids_T, shifted_TE = np.array(ids[:count]), draft.of_positions_before(features_TE, count)
    blocks = [(first, min(first + _BLOCK_ROWS, count)) for first in range(start - 1, count, _BLOCK_ROWS)]
    states = [
        draft.step(
            ids_T[first:stop],
            positions=np.arange(first, stop),
            cache=text,
            features_TE=None if shifted_TE is None else shifted_TE[first:stop],
        )
        for first, stop in (*prefill_pieces(start - 1), *blocks)
    ]
    return DraftStates(*map(concatenated, zip(*states, strict=True)))


def _roll_out(
    draft: DraftPasses, states: DraftStates, lengths: Sequence[int], branches: BranchCaches, counts: tuple[int, int]
) -> tuple[Array, Array]:
    """Return the best target ids [R, N, F] after prefixes, and streams' guesses [R, N, J].

    `states` are those of the prefixes' last rows, `lengths` the lengths of the prefixes.
    """
    num_tokens, num_alternatives = counts
    columns, guesses = [], []
    for step in range(num_tokens):
        best = draft.output.ids[ranked_ids(draft.output.logits(states.hidden_TD), num_alternatives)]
        columns.append(best)
        positions = [length + step for length in lengths]
        guesses.append(_guess(draft, states.entering_TD, positions, branches))
        if step == num_tokens - 1:
            break
        rows = branches.rows(slice(len(lengths)), [[position] for position in positions])
        entering_R1D, hidden_R1D = draft.run(best[:, :1], positions=rows.positions_RT, cache=rows)
        states = DraftStates(entering_R1D[:, 0], hidden_R1D[:, 0])
    return stacked(columns, 1), stacked(guesses, 1)


def _guess(draft: DraftPasses, entering_RD: Array, positions: Sequence[int], branches: BranchCaches) -> Array:
    """Return the target ids that streams guess after the proposals at `positions`, [R, J]; J is 0 without streams."""
    if not (num_streams := draft.num_streams):  # `branches.rows` needs at least one row
        return zeros(draft.output.ids, len(positions), 0)
    rows = branches.rows(slice(len(positions)), [range(position, position + num_streams) for position in positions])
    last_R1 = np.array(positions)[:, None] - 1
    guessed_R1J = draft.guess(entering_RD[:, None], positions=last_R1, cache=rows, num_streams=num_streams)
    return draft.output.ids[guessed_R1J[:, 0]]


def _hits(tokens_PN: NDArray[Any], guesses_PNJ: NDArray[Any]) -> NDArray[Any]:
    """Return how many guesses in a row equal the tokens drafted next, [P, N]."""
    num_tokens, num_streams = guesses_PNJ.shape[1:]
    padded = np.pad(tokens_PN, ((0, 0), (0, num_streams)), constant_values=-1)
    following_PNJ = np.lib.stride_tricks.sliding_window_view(padded, num_tokens, axis=1).swapaxes(1, 2)[..., 1:]
    return (guesses_PNJ == following_PNJ).cumprod(axis=-1).sum(axis=-1)  # type: ignore[no-any-return]
