"""Replays an acceptance record: at temperature 0 the exact rounds that a schedule would go through.

A round from position i drafts the recorded tokens from there; what agrees with the text stands, and the text's
next token is the target's own. Where the text ends the sequence is finished; what the target would have said
behind it is unknown and stands as `NO_TOKEN`, and such a round may have accepted more than was recorded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.messages import Verdict, Window
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from sim.acceptance.acceptance_model import MISS, NO_TOKEN, Answer, Answers, Ints, Walk
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

    def shape(self, schedule: Schedule) -> RoundShape:
        """See `Acceptance`; the exit's roots of `hybrid` are an estimate, see `RootRanks.mean_exit_roots`."""
        if schedule.is_tree:
            record = self._joined.record
            return tree_shape(schedule, record.trees[record.tree(schedule)].paths)
        if schedule.root_source != "hybrid":
            return RoundShape(schedule.num_speculative_tokens, sum(schedule.exit_roots_per_row))
        self._joined.check(schedule)
        return RoundShape(schedule.num_speculative_tokens, self._roots.mean_exit_roots(schedule))

    def answers(self, schedule: Schedule, max_new_tokens: int | None) -> list[Answers]:
        """See `Acceptance`."""
        self._joined.check(schedule)
        joined = self._joined
        at = np.arange(len(joined.text))
        accepted = self._accepted(schedule)
        row = at + accepted
        is_known = row < joined.ends
        next_token = np.where(is_known, joined.text[np.minimum(row, len(at) - 1)], NO_TOKEN)
        if schedule.is_tree:
            return self._tree_answers(schedule, max_new_tokens, accepted.tolist(), next_token.tolist())
        drafts = joined.drafts(with_features=schedule.exit_features)
        branches = self._branches_at(schedule, at, accepted, is_known)
        lists = accepted.tolist(), next_token.tolist(), branches.tolist()
        return [
            ReplayAnswers(
                prompt.prompt_length,
                length,
                start,
                schedule.num_speculative_tokens,
                drafts.windows,
                *lists,
            )
            for prompt, length, start in zip(
                joined.record.prompts, joined.lengths(max_new_tokens), joined.starts.tolist(), strict=True
            )
        ]

    def walk(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        """See `Acceptance`."""
        key: tuple[object, ...] = (schedule.num_speculative_tokens, schedule.exit_features, max_new_tokens)
        if schedule.is_tree:
            key = (self._joined.record.tree(schedule), schedule.tree_size, max_new_tokens, "tree")
        if key not in self._walks:
            self._joined.check(schedule)
            self._walks[key] = self._walked(schedule, max_new_tokens)
        return self._walks[key]

    def branches(self, schedule: Schedule, walk: Walk) -> Ints:
        """See `Acceptance`."""
        self._joined.check(schedule)
        return self._branches_at(
            schedule, self._joined.starts[walk.prompt] + walk.position, walk.num_accepted, ~walk.is_last
        )

    def guessing(self, schedule: Schedule) -> Guessing | None:
        """See `Acceptance`."""
        if not schedule.draft_streams:
            return None
        self._joined.check(schedule)
        return Guessing(
            self._joined.stream_hits(with_features=schedule.exit_features),
            self._joined.starts,
            num_tokens=schedule.num_speculative_tokens,
            num_streams=schedule.draft_streams,
        )

    def _accepted(self, schedule: Schedule) -> Ints:
        """Drafted tokens that stand in a round from every position of the texts."""
        joined = self._joined
        if not schedule.is_tree:
            drafts = joined.drafts(with_features=schedule.exit_features)
            return np.minimum(drafts.match_length, schedule.num_speculative_tokens)
        accepted = joined.tree_lengths(joined.record.tree(schedule), schedule.tree_size)
        if schedule.method == "speculative_streaming":
            accepted[joined.starts] = 0  # the first pass has nothing to verify
        return accepted

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
                has_streams=schedule.method == "speculative_streaming",
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
        if schedule.method == "mirror":
            branches[is_asked] = self._roots.branches(schedule, at[is_asked], accepted[is_asked])
        return branches

    def _walked(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        joined = self._joined
        accepted = self._accepted(schedule)
        lengths = joined.lengths(max_new_tokens)
        advance = (accepted + 1).tolist()
        at: list[int] = []
        firsts = []
        for start, length in zip(joined.starts.tolist(), lengths, strict=True):
            firsts.append(len(at))
            place = start
            while place < start + length:
                at.append(place)
                place += advance[place]
        return self._rounds(np.array(at), np.array(firsts), accepted, np.array(lengths))

    def _rounds(self, at: Ints, firsts: Ints, accepted: Ints, lengths: Ints) -> Walk:
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
    width: int
    windows: list[tuple[int, ...]]
    num_accepted: list[int]
    next_token: list[int]
    branches: list[int]

    def at(self, position: int, round_index: int) -> Answer:  # noqa: ARG002
        """See `Answers`."""
        place = self.start + position
        window = Window(self.windows[place][: self.width])
        return window, Verdict(self.num_accepted[place], self.next_token[place]), self.branches[place]
