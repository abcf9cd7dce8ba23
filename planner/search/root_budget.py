"""An uneven budget of branches: more of them where, by the record, rounds end and the candidates are right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.record import AcceptanceRecord, PromptRecord

Counts = NDArray[np.int64]


def correction_ranks(record: AcceptanceRecord, window: int, *, with_features: bool, exit_layer: int | None) -> Counts:
    """How often a round ends behind row r with the target's token at candidate rank k, [window + 1, ranks].

    Ranks count as `decoding.roots.choose_roots` does: the drafted token of the row is no candidate. The
    candidates are those of `exit_layer`, or the draft's own for None. Rounds are the ones that every greedy
    schedule of this window goes through; the last round of a text asks for no branch and is not counted.
    """
    prompts = record.prompts
    num_ranks = min((_candidates(prompt, exit_layer).shape[1] for prompt in prompts), default=0)
    counts = np.zeros((window + 1, num_ranks), dtype=np.int64)
    for prompt in prompts:
        starts, accepted = _rounds(prompt, window, with_features=with_features)
        places = starts + accepted
        candidates = _candidates(prompt, exit_layer)[places, :num_ranks]
        corrections = prompt.text[places]
        rejected = np.where(
            accepted < window,
            prompt.drafts(with_features=with_features)[starts, np.minimum(accepted, window - 1)],
            -1,
        )
        is_correction = candidates == corrections[:, None]
        is_rejected = candidates == rejected[:, None]
        ranks = is_correction.argmax(axis=1) - (np.cumsum(is_rejected, axis=1) * is_correction).sum(axis=1)
        found = is_correction.any(axis=1)
        np.add.at(counts, (accepted[found], ranks[found]), 1)
    return counts


def uneven_budget(ranks: Counts, num_roots: int, *, most_per_row: int) -> tuple[int, ...]:
    """The `num_roots` roots that would have been right most often, as roots per row, [window + 1].

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
    lengths = np.minimum(prompt.match_lengths(with_features=with_features), window).tolist()
    starts, accepted, position = [], [], 0
    while position + lengths[position] + 1 < len(lengths):
        starts.append(position)
        accepted.append(lengths[position])
        position += lengths[position] + 1
    return np.array(starts, dtype=np.int64), np.array(accepted, dtype=np.int64)


def _candidates(prompt: PromptRecord, exit_layer: int | None) -> NDArray[np.int32]:
    return prompt.alternatives if exit_layer is None else prompt.exits[exit_layer]
