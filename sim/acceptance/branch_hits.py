"""Finds whether a round's outcome is among the roots that a schedule chooses (a hit), for many rounds at once.

A token is a root (`decoding.roots.choose_roots`) if fewer candidates than the row's budget precede it, not counting the
drafted token. Only for `hybrid` do the exit's roots also depend on the draft's roots. Shape legend: R rounds, T
positions of all texts, K candidates. `at` are the positions at which rounds start.
"""

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import Ints
from decoding.record import Ids
from decoding.roots import rank_without
from decoding.schedule import Schedule
from sim.acceptance.joined_record import NO_TOKEN, JoinedRecord

MISS, FROM_DRAFT, FROM_EXIT = 0, 1, 2
"""Source of the branch with a round's outcome: none, the draft, or the exit."""

NOWHERE = 1 << 30
"""Rank of a token that is not among the candidates."""

NO_ROOT = NO_TOKEN - 1
"""Fills unused entries among roots; differs from all candidates, including `NO_TOKEN`."""


class RootRanks:
    """Ranks of rounds' outcomes among the candidates of a record; results are cached for each source."""

    def __init__(self, joined: JoinedRecord) -> None:
        self._joined = joined
        self._places: dict[tuple[int | None, bool, bool], tuple[Ints, Ints]] = {}
        self._fresh: dict[tuple[object, ...], tuple[float, float]] = {}
        self._last_ranks: dict[bool, tuple[object, Ints, Ints, Ints]] = {}
        self._exit_ranks_of: tuple[object, tuple[Ints, ...]] = (None, ())

    def branches(self, schedule: Schedule, at: Ints, accepted: Ints) -> Ints:
        """Return `MISS`, `FROM_DRAFT` or `FROM_EXIT` for rounds of a mirror schedule that others follow, [R]."""
        branch = np.full(len(at), MISS, dtype=np.int64)
        if schedule.uses_exit:
            branch[self._among_exit_roots(schedule, at, accepted)] = FROM_EXIT
        if schedule.root_source != "exit":
            rank, _ = self.ranks(None, schedule, at, accepted)
            branch[rank < np.array(schedule.draft_roots_per_row)[accepted]] = FROM_DRAFT
        return branch

    def branches_of_no_window(self, schedule: Schedule, at: Ints) -> Ints:
        """Return `branches` of rounds without a window, [R]: their only row has the budget of a window's last row."""
        branch = np.full(len(at), MISS, dtype=np.int64)
        if schedule.uses_exit:
            following, _ = self._table(schedule.exit_layer, schedule)
            found: NDArray[np.bool_] = following[at] < schedule.exit_roots_per_row[-1]
            if schedule.root_source == "hybrid":
                last = np.flatnonzero(following[at] == schedule.exit_top_k)
                found[last] = self._moves_up(schedule, at[last], np.full(len(last), NO_TOKEN))
            branch[found] = FROM_EXIT
        if schedule.root_source != "exit":
            following, _ = self._table(None, schedule)
            branch[following[at] < schedule.draft_roots_per_row[-1]] = FROM_DRAFT
        return branch

    def mean_exit_roots(self, schedule: Schedule, num_drafted: int) -> int:
        """Estimate the number of exit roots of a `hybrid` round that are not the draft's roots too; at least 1.

        Each row of the window counts with the mean over all positions of the texts, because candidates after refused
        tokens were not recorded.
        """
        key = (schedule.exit_layer, schedule.exit_top_k, schedule.draft_top_k, schedule.verification)
        if key not in self._fresh:
            self._fresh[key] = self._fresh_roots(schedule)
        in_window, after_it = self._fresh[key]
        return max(1, round(num_drafted * in_window + after_it))

    def _fresh_roots(self, schedule: Schedule) -> tuple[float, float]:
        """Return the mean number of exit roots in a row that are not the draft's too: in the window, and after it."""

        def mean(rank: Ints) -> float:
            is_fresh = rank[: schedule.num_exit_candidates] >= schedule.draft_top_k
            return float(np.minimum(schedule.exit_top_k, is_fresh.sum(axis=0)).mean())

        in_window, after_it = self._exit_ranks(schedule)
        return mean(in_window), mean(after_it)

    def _exit_ranks(self, schedule: Schedule) -> tuple[Ints, ...]:
        """Return the ranks of the exit's candidates among the draft's, [K, T], in the window and after it.

        Candidates that cannot be roots have rank -1.
        """
        key = schedule.exit_layer, schedule.verification
        if self._exit_ranks_of[0] != key:
            candidates, drafts = self._joined.candidates(None), self._joined.drafts(schedule)
            tokens, drafted = self._joined.candidates(schedule.exit_layer).T, drafts.tokens[:, 0]
            place = np.stack([_place(candidates, row) for row in tokens])
            place[tokens == NO_TOKEN] = -1
            in_window = rank_without(place, _place(candidates, drafted))
            self._exit_ranks_of = key, (np.where(tokens == drafted, -1, in_window), place)
        return self._exit_ranks_of[1]

    def _among_exit_roots(self, schedule: Schedule, at: Ints, accepted: Ints) -> NDArray[np.bool_]:
        """Return whether the outcome is a root of the exit, [R]; for `hybrid` it may be the draft's too."""
        rank, place = self.ranks(schedule.exit_layer, schedule, at, accepted)
        found: NDArray[np.bool_] = rank < np.array(schedule.exit_roots_per_row)[accepted]
        if schedule.root_source == "hybrid":
            last = np.flatnonzero((rank == schedule.exit_top_k) & (place == schedule.exit_top_k))
            refused = self._joined.drafts(schedule).refused[at[last]]
            drafted = np.where(accepted[last] < schedule.num_speculative_tokens, refused, NO_TOKEN)
            found[last] = self._moves_up(schedule, at[last] + accepted[last], drafted)
        return found

    def _moves_up(self, schedule: Schedule, row: Ints, drafted: Ints) -> NDArray[np.bool_]:
        """Return whether the exit's candidate `exit_top_k` (the first after the budget) becomes a root, [R].

        It does if one of those before it is a root of the draft already.
        """
        before = self._joined.candidates(schedule.exit_layer)[row, : schedule.exit_top_k]
        roots = self._draft_roots(row, drafted, schedule.draft_top_k)
        moves_up: NDArray[np.bool_] = (before[:, :, None] == roots[:, None, :]).any(axis=(1, 2))
        return moves_up

    def ranks(self, exit_layer: int | None, schedule: Schedule, at: Ints, accepted: Ints) -> tuple[Ints, Ints]:
        """Return (rank without the drafted token, rank with it) of the target's token among a source's candidates, [R].

        The last result for the draft and for an exit is cached, since consecutive schedules often differ in budgets
        only.
        """
        key = exit_layer, schedule.num_speculative_tokens, *self._key(schedule)
        kept = self._last_ranks.get(exit_layer is None)
        if kept is None or kept[0] != key or kept[1] is not at:
            following, refused_at = self._table(exit_layer, schedule)
            place = following[at + accepted]
            refused = np.where(accepted < schedule.num_speculative_tokens, refused_at[at], NOWHERE)
            kept = self._last_ranks[exit_layer is None] = key, at, rank_without(place, refused), place
        return kept[2], kept[3]

    def _key(self, schedule: Schedule) -> tuple[bool, bool]:
        return schedule.exit_features, self._joined.record.samples_drafts(schedule)

    def _table(self, exit_layer: int | None, schedule: Schedule) -> tuple[Ints, Ints]:
        """Return the ranks of the text's token and of the refused one among a source's candidates, both [T]."""
        key = exit_layer, *self._key(schedule)
        if key not in self._places:
            joined = self._joined
            drafts = joined.drafts(schedule)
            candidates = joined.candidates(exit_layer)
            row = np.minimum(np.arange(len(joined.text)) + drafts.match_length, len(joined.text) - 1)
            self._places[key] = _place(candidates, joined.text), _place(candidates[row], drafts.refused)
        return self._places[key]

    def _draft_roots(self, row: Ints, drafted: Ints, top_k: int) -> Ids:
        """Return the draft's roots at text positions `row`, where the window has tokens `drafted`, [R, top_k + 1]."""
        candidates = self._joined.candidates(None)[row, : top_k + 1]
        others = candidates != drafted[:, None]
        roots: Ids = np.where(others & (np.cumsum(others, axis=1) <= top_k), candidates, NO_ROOT)
        return roots


def _place(candidates: Ids, tokens: Ids | Ints) -> Ints:
    """Return the rank of each token in its row of candidates: [T, K] and [T] -> [T]."""
    found = candidates == tokens[:, None]
    return np.where(found.any(axis=1), found.argmax(axis=1), NOWHERE)
