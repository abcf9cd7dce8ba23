"""Replays an acceptance record: at temperature 0 the exact rounds that a schedule would go through.

Above it a record holds sampled texts: under `match`, and with trees, what is accepted follows from a text; the ratio
rule draws which of its tokens were drafted. Where a text ends the sequence is finished; what the target would have said
after it is `NO_TOKEN`, and such a round may have accepted more than was recorded.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from costs.cost_model import Ints
from costs.round_plan import RoundShape, tree_shape
from decoding.errors import ConfigError, shown
from decoding.method_traits import MethodTraits
from decoding.record import AcceptanceRecord, round_starts
from decoding.schedule import Schedule
from sim.acceptance.branch_hits import MISS, RootRanks
from sim.acceptance.joined_record import NO_TOKEN, Drafts, Guessing, JoinedRecord
from sim.acceptance.shortened import num_verified
from sim.acceptance.walk import Walk
from sim.without_caches import WithoutCaches

MOST_KEPT = 4096
"""Schedules of which is kept whether the record covers them: that is asked several times of each."""


class Outcomes(NamedTuple):
    """What rounds of one schedule from every position of all texts together would do, as lists.

    Attributes:
        starts, lengths, prompt_lengths: of every prompt its first position, its new tokens and its prompt's.
        first_context: the lowest in which a round may start.
        text: the token at every position.
        num_drafted, num_accepted: tokens in the window, and those accepted, by position.
        refused: the drafted token after those; `NO_TOKEN` where there is none, or nobody knows.
        branches: `MISS`, `FROM_DRAFT` or `FROM_EXIT`; without meaning where the round is the text's last.
        branches_of_no_window: the same of a round in which nothing was drafted.
        num_draft_roots, num_exit_roots: branches of each source in a round without a window, and with one.
        guessed_rows: rows of the steps after a window's first one, by position, 0 for those that streams save; empty
            for a draft without streams.
    """

    starts: list[int]
    lengths: list[int]
    prompt_lengths: list[int]
    first_context: int
    text: list[int]
    num_drafted: list[int]
    num_accepted: list[int]
    refused: list[int]
    branches: list[int]
    branches_of_no_window: list[int]
    num_draft_roots: tuple[int, int]
    num_exit_roots: tuple[int, int]
    guessed_rows: list[list[int]]


class Replay(WithoutCaches):
    """The acceptance of a record. It keeps what schedules have in common: make one and ask it often.

    `max_new_tokens` cuts all texts; None leaves them as they are. A schedule that asks for what nobody knows is refused
    (`RecordError`) by all but `missing`.
    """

    def __init__(self, record: AcceptanceRecord, *, seed: int = 0) -> None:
        """Draw by `seed` what a text leaves open; raise `RecordError` if there is no prompt, or one without text."""
        self.record = record
        self._joined = JoinedRecord(record, seed=seed)
        self._roots = RootRanks(self._joined)
        self._prompt_lengths = np.array([prompt.prompt_length for prompt in record.prompts])
        self._walks: dict[tuple[object, ...], Walk] = {}
        self._played: set[tuple[MethodTraits, tuple[object, ...]]] = set()

    def __repr__(self) -> str:
        """In a line: its texts would fill pages."""
        return f"<{type(self).__name__}: {self.source}>"

    @cached_property
    def missing(self) -> Callable[[Schedule], str | None]:
        """Returns what a schedule asks for that was neither recorded nor assumed, or None."""
        return lru_cache(MOST_KEPT)(self.record.missing)

    @property
    def source(self) -> str:
        """Say where the answers come from, in a few words."""
        record, count = self.record, len(self._prompt_lengths)
        if record.assumed is None:
            at = f" at temperature {record.temperature:g}, without what drawing takes" if record.temperature else ""
            return f"replay of {count} recorded {'texts' if at else 'prompts'}{at}"
        return f"assumed acceptance {record.assumed}, drawn as {count} texts of {record.max_new_tokens} tokens"

    def contexts(self, max_new_tokens: int | None) -> range:
        """Return the contexts in which a round may start, for all prompts together."""
        lengths = self._joined.lengths(max_new_tokens)
        return range(int(self._prompt_lengths.min()) - 1, int((self._prompt_lengths + lengths).max()) - 1)

    def _check(self, schedule: Schedule) -> None:
        if self.missing(schedule):
            self.record.check(schedule)

    def shape(self, schedule: Schedule) -> RoundShape:
        """Return the width of a round's operations; exit roots of `hybrid` are an estimate, see `num_exit_roots`."""
        record = self.record
        if schedule.is_tree:
            return tree_shape(schedule, record.trees[record.tree(schedule)].paths)
        num_tokens = schedule.num_speculative_tokens
        # of branches that are not taken nothing was recorded: they count as long as the slowest window that was
        guessing = self.guessing(schedule) if schedule.traits.overlaps else None
        num_steps = None if guessing is None else guessing.most_steps
        return RoundShape(num_tokens, self.num_exit_roots(schedule, num_tokens), branch_steps=num_steps)

    def num_exit_roots(self, schedule: Schedule, num_drafted: int) -> int:
        """Return the branches that the exit starts in rounds with a window of all its tokens, or none.

        Without a window there is one row, that after a window that was accepted whole. Of `hybrid` it is an estimate,
        see `RootRanks.mean_exit_roots`.
        """
        if schedule.root_source == "hybrid":
            self._check(schedule)
            return self._roots.mean_exit_roots(schedule, num_drafted)
        budget = schedule.exit_roots_per_row
        return sum(budget) if num_drafted else budget[-1]

    def walk(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        """Return all rounds of all prompts; raise `ConfigError` for a method that no simulator plays."""
        record = self.record
        self._check(schedule)
        window: tuple[object, ...] = (
            schedule.num_speculative_tokens,
            schedule.exit_features,
            record.samples_drafts(schedule),
        )
        if schedule.is_tree:
            window = ("tree", record.tree(schedule), schedule.tree_size)
        elif not schedule.traits.has_draft_model and schedule.traits.window != "none":
            window = ("chain", record.chain(schedule), schedule.num_speculative_tokens)
        key = (*window, max_new_tokens, schedule if schedule.traits.shortens else None)
        if (schedule.traits, key) not in self._played:
            longest = max(self._texts(max_new_tokens), key=lambda text: int(text.stop - text.start))
            self._num_verified(schedule, [longest])
            self._played.add((schedule.traits, key))
        if key not in self._walks:
            self._walks[key] = self._walked(schedule, max_new_tokens)
        return self._walks[key]

    def branches(self, schedule: Schedule, walk: Walk) -> Ints:
        """Return `MISS`, `FROM_DRAFT` or `FROM_EXIT` for each round of `walk`, [rounds]; meaningless in last rounds."""
        branches = np.full(len(walk.at), MISS, dtype=np.int64)
        if schedule.traits.overlaps:
            asked = walk.every.going_on
            branches[asked.index] = self._roots.branches(schedule, asked.at, asked.num_accepted)
        return branches

    def correction_ranks(self, schedule: Schedule) -> Ints:
        """Return how often a round ends after row r with the target's token at candidate rank k, [window + 1, ranks].

        Candidates are those of the schedule's exit, or else the draft's own; the drafted token of the row is none of
        them, as in `decoding.roots.choose_roots`. The last round of a text needs no branch and is not counted.
        """
        asked = self._walked(schedule, None).every.going_on
        ranks, _ = self._roots.ranks(schedule.exit_layer, schedule, asked.at, asked.num_accepted)
        num_ranks = self.record.num_candidates(schedule.exit_layer)
        counts = np.zeros((schedule.num_speculative_tokens + 1, num_ranks), dtype=np.int64)
        found = ranks < num_ranks
        np.add.at(counts, (asked.num_accepted[found], ranks[found]), 1)
        return counts

    def outcomes(self, schedule: Schedule, max_new_tokens: int | None) -> Outcomes:
        """Return what a round from every position of the texts would do."""
        self._check(schedule)
        joined, drafted, accepted = self._joined, self._drafted(schedule), self._accepted(schedule)
        branches = alone = np.full(len(accepted), MISS, dtype=np.int64)
        if schedule.traits.overlaps:
            at = np.arange(len(accepted))
            asked = np.flatnonzero(at + accepted < joined.ends)
            branches = branches.copy()
            branches[asked] = self._roots.branches(schedule, asked, accepted[asked])
            alone = self._roots.branches_of_no_window(schedule, at)
        is_chain = not schedule.is_tree and schedule.traits.window != "none"
        refused = np.where(accepted < drafted, self._chains(schedule).refused, NO_TOKEN) if is_chain else alone * 0 - 1
        from_draft, counts = schedule.draft_roots_per_row or (0,), (0, schedule.num_speculative_tokens)
        without, with_window = (self.num_exit_roots(schedule, count) * schedule.uses_exit for count in counts)
        guessing = self.guessing(schedule)
        return Outcomes(
            starts=joined.starts.tolist(),
            lengths=joined.lengths(max_new_tokens),
            prompt_lengths=self._prompt_lengths.tolist(),
            first_context=self.contexts(max_new_tokens).start,
            text=joined.text.tolist(),
            num_drafted=drafted.tolist(),
            num_accepted=accepted.tolist(),
            refused=refused.tolist(),
            branches=branches.tolist(),
            branches_of_no_window=alone.tolist(),
            num_draft_roots=(from_draft[-1], sum(from_draft)),
            num_exit_roots=(without, with_window),
            guessed_rows=[] if guessing is None else guessing.rows_by_step(np.arange(len(accepted))).T.tolist(),
        )

    def guessing(self, schedule: Schedule) -> Guessing | None:
        """Return the steps that the draft's own streams save; None for a schedule without."""
        if not schedule.draft_streams:
            return None
        self._check(schedule)
        return Guessing(
            self._joined.stream_hits(with_features=schedule.exit_features),
            num_tokens=schedule.num_speculative_tokens,
            num_streams=schedule.draft_streams,
        )

    def _accepted(self, schedule: Schedule) -> Ints:
        joined, traits = self._joined, schedule.traits
        if traits.is_tree:
            accepted = joined.tree_lengths(self.record.tree(schedule), schedule.tree_size)
            if traits.drafts_itself:
                accepted[joined.starts] = 0  # the first pass has nothing to verify
            return accepted
        if traits.window == "none":
            return np.zeros(len(joined.text), dtype=np.int64)
        return np.minimum(self._chains(schedule).match_length, schedule.num_speculative_tokens)

    def _drafted(self, schedule: Schedule) -> Ints:
        if schedule.traits.finds_text:
            tokens = self._chains(schedule).tokens[:, : schedule.num_speculative_tokens]
            found: Ints = (tokens != NO_TOKEN).sum(axis=1)
            return found
        drafted = np.full(len(self._joined.text), self.shape(schedule).num_drafted, dtype=np.int64)
        if schedule.traits.drafts_itself:
            drafted[self._joined.starts] = 0
        return drafted

    def _chains(self, schedule: Schedule) -> Drafts:
        if schedule.traits.has_draft_model:
            return self._joined.drafts(schedule)
        return self._joined.chain(self.record.chain(schedule))

    def _texts(self, max_new_tokens: int | None) -> list[slice]:
        """Return the positions of every text."""
        starts, lengths = self._joined.starts.tolist(), self._joined.lengths(max_new_tokens)
        return [slice(start, start + length) for start, length in zip(starts, lengths, strict=True)]

    def _num_verified(self, schedule: Schedule, texts: Sequence[slice]) -> Ints:
        """Return how many tokens of its windows the method verifies in rounds of some texts, and all elsewhere."""
        joined, accepted, drafted = self._joined, self._accepted(schedule), self._drafted(schedule)
        verified = drafted.copy()
        for text in texts:
            of_text = (values[text].tolist() for values in (joined.text, drafted, accepted))
            verified[text] = num_verified(schedule, *of_text)
        return verified

    def _walked(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        joined, accepted, drafted = self._joined, self._accepted(schedule), self._drafted(schedule)
        lengths, texts = joined.lengths(max_new_tokens), self._texts(max_new_tokens)
        verified = self._num_verified(schedule, texts) if schedule.traits.shortens else drafted
        accepted = np.minimum(accepted, verified)
        counts = accepted.tolist()
        rounds = [round_starts(counts[text], length) for text, length in zip(texts, lengths, strict=True)]
        prompt = np.repeat(np.arange(len(rounds)), list(map(len, rounds)))
        position = np.concatenate(rounds)
        at = joined.starts[prompt] + position
        left = np.array(lengths)[prompt] - position
        return Walk(
            prompt=prompt,
            at=at,
            context=self._prompt_lengths[prompt] + position - 1,
            num_drafted=drafted[at],
            num_verified=verified[at],
            num_accepted=accepted[at],
            num_committed=np.minimum(accepted[at] + 1, left),
            is_first=position == 0,
            is_last=accepted[at] + 1 >= left,
            contexts=self.contexts(max_new_tokens),
            prompt_numbers=self.record.prompt_numbers,
            is_drawn=self.record.assumed is not None,
            is_sampled=self.record.temperature > 0,
        )


Acceptance = Replay | AcceptanceRecord
"""Where accepted tokens come from: texts that were recorded or drawn."""


def replay_of(acceptance: Acceptance) -> Replay:
    """Return a `Replay` of the acceptance, which may be one already."""
    return acceptance if isinstance(acceptance, Replay) else Replay(record_of(acceptance))


def record_of(acceptance: Acceptance) -> AcceptanceRecord:
    """Return the texts of an acceptance, recorded or drawn; raise `ConfigError` for what is none."""
    record = acceptance.record if isinstance(acceptance, Replay) else acceptance
    if not isinstance(record, AcceptanceRecord):
        raise ConfigError(f"acceptance is {shown(record)}: it is an AcceptanceRecord, or assumed, as Bernoulli(0.8) is")
    return record
