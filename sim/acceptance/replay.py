"""Replays an acceptance record: at temperature 0 the exact rounds that a schedule would go through.

A round from position i drafts the recorded tokens from there; what agrees with the text is accepted, and the text's
next token is the target's own. Where the text ends the sequence is finished; what the target would have said
after it is unknown: it is `NO_TOKEN`, and such a round may have accepted more than was recorded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.messages import Verdict, Window
from decoding.record import AcceptanceRecord, round_starts
from decoding.schedule import Schedule
from sim.acceptance.acceptance_model import MISS, NO_TOKEN, Acceptance, Answer, Answers, Ints, Walk
from sim.acceptance.branch_hits import RootRanks
from sim.acceptance.joined_record import JoinedRecord
from sim.acceptance.replayed_trees import TreeAnswers
from sim.acceptance.stream_guesses import Guessing
from sim.cost.round_shape import RoundShape, tree_shape


class Replay:
    """The acceptance of a record. It keeps what schedules have in common: make one and ask it often."""

    def __init__(self, record: AcceptanceRecord) -> None:
        """Raise `RecordError` if there is no prompt, or one without text."""
        self._joined = JoinedRecord(record)
        self._roots = RootRanks(self._joined)
        self._prompt_lengths = np.array([prompt.prompt_length for prompt in record.prompts])
        self._walks: dict[tuple[object, ...], Walk] = {}

    @property
    def source(self) -> str:
        """See `Acceptance`."""
        return f"replay of {len(self._prompt_lengths)} recorded prompts"

    def contexts(self, max_new_tokens: int | None) -> range:
        """See `Acceptance`."""
        lengths = self._joined.lengths(max_new_tokens)
        return range(int(self._prompt_lengths.min()) - 1, int((self._prompt_lengths + lengths).max()) - 1)

    def missing(self, schedule: Schedule) -> str | None:
        """See `Acceptance`."""
        return self._joined.record.missing(schedule)

    def shape(self, schedule: Schedule) -> RoundShape:
        """See `Acceptance`; the exit's roots of `hybrid` are an estimate, see `RootRanks.mean_exit_roots`."""
        record = self._joined.record
        if schedule.is_tree:
            return tree_shape(schedule, record.trees[record.tree(schedule)].paths)
        if schedule.root_source != "hybrid":
            return RoundShape(schedule.num_speculative_tokens, sum(schedule.exit_roots_per_row))
        record.check(schedule)
        return RoundShape(schedule.num_speculative_tokens, self._roots.mean_exit_roots(schedule))

    def answers(self, schedule: Schedule, max_new_tokens: int | None) -> list[Answers]:
        """See `Acceptance`."""
        joined = self._joined
        joined.record.check(schedule)
        at = np.arange(len(joined.text))
        accepted = self._accepted(schedule)
        row = at + accepted
        is_known = row < joined.ends
        next_token = np.where(is_known, joined.text[np.minimum(row, len(at) - 1)], NO_TOKEN).tolist()
        if schedule.is_tree:
            return self._tree_answers(schedule, max_new_tokens, accepted.tolist(), next_token)
        branches = self._branches_at(schedule, at, accepted, is_known).tolist()
        lists = (self._windows(schedule), accepted.tolist(), next_token, branches)
        starts = zip(joined.record.prompts, joined.lengths(max_new_tokens), joined.starts.tolist(), strict=True)
        return [ReplayAnswers(prompt.prompt_length, length, start, *lists) for prompt, length, start in starts]

    def walk(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        """See `Acceptance`."""
        record = self._joined.record
        record.check(schedule)
        window: tuple[object, ...] = (schedule.num_speculative_tokens, schedule.exit_features)
        if schedule.is_tree:
            window = ("tree", record.tree(schedule), schedule.tree_size)
        elif not schedule.traits.has_draft_model and schedule.traits.window != "none":
            window = ("chain", record.chain(schedule), schedule.num_speculative_tokens)
        key = (*window, max_new_tokens)
        if key not in self._walks:
            self._walks[key] = self._walked(schedule, max_new_tokens)
        return self._walks[key]

    def branches(self, schedule: Schedule, walk: Walk) -> Ints:
        """See `Acceptance`."""
        self._joined.record.check(schedule)
        return self._branches_at(
            schedule, self._joined.starts[walk.prompt] + walk.position, walk.num_accepted, ~walk.is_last
        )

    def guessing(self, schedule: Schedule) -> Guessing | None:
        """See `Acceptance`."""
        if not schedule.draft_streams:
            return None
        self._joined.record.check(schedule)
        return Guessing(
            self._joined.stream_hits(with_features=schedule.exit_features),
            self._joined.starts,
            num_tokens=schedule.num_speculative_tokens,
            num_streams=schedule.draft_streams,
        )

    def _accepted(self, schedule: Schedule) -> Ints:
        """Drafted tokens that are accepted in a round from every position of the texts."""
        joined, traits = self._joined, schedule.traits
        if traits.is_tree:
            accepted = joined.tree_lengths(joined.record.tree(schedule), schedule.tree_size)
            if traits.drafts_itself:
                accepted[joined.starts] = 0  # the first pass has nothing to verify
            return accepted
        if traits.window == "none":
            return np.zeros(len(joined.text), dtype=np.int64)
        if traits.has_draft_model:
            longest = joined.drafts(with_features=schedule.exit_features).match_length
        else:
            longest = joined.chain_lengths(joined.record.chain(schedule))
        return np.minimum(longest, schedule.num_speculative_tokens)

    def _drafted(self, schedule: Schedule) -> Ints:
        """Tokens in the window of a round from every position of the texts."""
        joined, traits = self._joined, schedule.traits
        drafted = np.full(len(joined.text), self.shape(schedule).num_drafted, dtype=np.int64)
        if traits.drafts_itself:
            drafted[joined.starts] = 0
        elif traits.finds_text:
            found = joined.chain_drafts(joined.record.chain(schedule))[:, : schedule.num_speculative_tokens]
            drafted = (found != NO_TOKEN).sum(axis=1)
        return drafted

    def _windows(self, schedule: Schedule) -> list[tuple[int, ...]]:
        """The chain that is drafted from every position of the texts."""
        joined, traits, width = self._joined, schedule.traits, schedule.num_speculative_tokens
        if traits.window == "none":
            return [()] * len(joined.text)
        if traits.has_draft_model:
            return [window[:width] for window in joined.drafts(with_features=schedule.exit_features).windows]
        found = joined.chain_drafts(joined.record.chain(schedule))[:, :width].tolist()
        return [tuple(window[:count]) for window, count in zip(found, self._drafted(schedule).tolist(), strict=True)]

    def _tree_answers(
        self, schedule: Schedule, max_new_tokens: int | None, accepted: list[int], next_token: list[int]
    ) -> list[Answers]:
        joined = self._joined
        text, ranks = joined.text.tolist(), joined.tree_ranks(joined.record.tree(schedule)).tolist()
        num_drafted = self.shape(schedule).num_drafted
        return [
            TreeAnswers(
                prompt_length=prompt.prompt_length,
                num_tokens=length,
                start=start,
                end=start + len(prompt.text),
                num_drafted=num_drafted,
                has_streams=schedule.traits.drafts_itself,
                text=text,
                ranks=ranks,
                num_accepted=accepted,
                next_token=next_token,
            )
            for prompt, length, start in zip(
                joined.record.prompts, joined.lengths(max_new_tokens), joined.starts.tolist(), strict=True
            )
        ]

    def _branches_at(self, schedule: Schedule, at: Ints, accepted: Ints, is_asked: NDArray[np.bool_]) -> Ints:
        branches = np.full(len(at), MISS, dtype=np.int64)
        if schedule.traits.overlaps:
            branches[is_asked] = self._roots.branches(schedule, at[is_asked], accepted[is_asked])
        return branches

    def _walked(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        joined = self._joined
        accepted = self._accepted(schedule)
        lengths = joined.lengths(max_new_tokens)
        counts = accepted.tolist()
        at: list[int] = []
        firsts = []
        for start, length in zip(joined.starts.tolist(), lengths, strict=True):
            firsts.append(len(at))
            at += (start + position for position in round_starts(counts[start : start + length], length))
        return self._rounds(schedule, np.array(at), np.array(firsts), accepted, np.array(lengths))

    def _rounds(self, schedule: Schedule, at: Ints, firsts: Ints, accepted: Ints, lengths: Ints) -> Walk:
        """The walk over text positions `at`, in which prompts begin at the indices `firsts`."""
        is_first = np.zeros(len(at), dtype=np.bool_)
        is_first[firsts] = True
        prompt = np.cumsum(is_first) - 1
        position = at - self._joined.starts[prompt]
        left = lengths[prompt] - position
        return Walk(
            prompt=prompt,
            position=position,
            context=self._prompt_lengths[prompt] + position - 1,
            num_drafted=self._drafted(schedule)[at],
            num_accepted=accepted[at],
            num_committed=np.minimum(accepted[at] + 1, left),
            is_first=is_first,
            is_last=accepted[at] + 1 >= left,
            num_prompts=len(firsts),
        )


class ReplayAnswers(NamedTuple):
    """One prompt of a replay; the lists are those of all prompts, in which this one begins at `start`."""

    prompt_length: int
    num_tokens: int
    start: int
    windows: list[tuple[int, ...]]
    num_accepted: list[int]
    next_token: list[int]
    branches: list[int]

    def at(self, position: int, round_index: int) -> Answer:  # noqa: ARG002
        """See `Answers`."""
        place = self.start + position
        verdict = Verdict(self.num_accepted[place], self.next_token[place])
        return Window(self.windows[place]), verdict, self.branches[place]


def as_acceptance(acceptance: Acceptance | AcceptanceRecord) -> Acceptance:
    """A record as the acceptance model that replays it."""
    return Replay(acceptance) if isinstance(acceptance, AcceptanceRecord) else acceptance
