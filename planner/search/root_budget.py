"""An uneven budget of branches: more of them where, by the record, rounds end and the candidates are right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.record import AcceptanceRecord, PromptRecord, round_starts
from decoding.roots import rank_without

Counts = NDArray[np.int64]


def correction_ranks(record: AcceptanceRecord, window: int, *, with_features: bool, exit_layer: int | None) -> Counts:
    """Return how often a round ends after row r with the target's token at candidate rank k, [window + 1, ranks].

    Ranks count as `decoding.roots.choose_roots` does: the drafted token of the row is no candidate. The
    candidates are those of `exit_layer`, or the draft's own for None. Rounds are the ones that every greedy
    schedule of this window goes through; the last round of a text asks for no branch and is not counted.
    """
    num_ranks = record.num_candidates(exit_layer)
    counts = np.zeros((window + 1, num_ranks), dtype=np.int64)
    for prompt in record.prompts:
        starts, accepted = _rounds(prompt, window, with_features=with_features)
        places = starts + accepted
        candidates = prompt.candidates(exit_layer)[places, :num_ranks]
        corrections = prompt.text[places]
        rejected = np.where(
            accepted < window,
            prompt.drafts(with_features=with_features)[starts, np.minimum(accepted, window - 1)],
            -1,
        )
        is_correction = candidates == corrections[:, None]
        is_rejected = candidates == rejected[:, None]
        found = is_correction.any(axis=1)
        rejected_at = np.where(is_rejected.any(axis=1), is_rejected.argmax(axis=1), num_ranks)
        ranks = rank_without(is_correction.argmax(axis=1), rejected_at)
        np.add.at(counts, (accepted[found], ranks[found]), 1)
    return counts


def uneven_budget(ranks: Counts, num_roots: int, *, most_per_row: int) -> tuple[int, ...]:
    """Return the `num_roots` roots that would have been right most often, as roots per row, [window + 1].

    Greedy: the next root goes to the row whose next rank was right most often. Ranks that were never right get
    none, so the budget may be smaller than `num_roots`.
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


def _rounds(prompt: PromptRecord, window: int, *, with_features: bool) -> tuple[Counts, Counts]:
    """(position, accepted tokens) of every round but the last."""
    lengths = np.minimum(prompt.match_lengths(with_features=with_features), window)
    starts = np.array(round_starts(lengths.tolist(), len(lengths))[:-1], dtype=np.int64)
    return starts, lengths[starts].astype(np.int64)
