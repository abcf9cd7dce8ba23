"""Replays an acceptance record: finds the rounds that a schedule would go through, exactly so at temperature 0.

At higher temperatures a record holds sampled texts. With the rule `match`, and with trees, a text determines what is
accepted; with the ratio rule draws decide which of its tokens were drafted. A sequence ends with its text: the target's
next token is unknown (`NO_TOKEN`), and the last round may have accepted more than was recorded.
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
"""Number of schedules for which `Replay.missing` is cached, as it is called several times for each."""


class Outcomes(NamedTuple):
    """The outcomes of a schedule's rounds from each position of all concatenated texts, as lists.

    Attributes:
        starts, lengths, prompt_lengths: for each prompt: first position, number of new tokens, tokens of the prompt.
        first_context: the smallest context in which a round may start.
        text: token at each position.
        num_drafted, num_accepted: drafted tokens of the window, and accepted ones, by position.
        refused: the drafted token after the accepted ones; `NO_TOKEN` if there is none or it is unknown.
        branches: `MISS`, `FROM_DRAFT` or `FROM_EXIT` by position; undefined if the round is the text's last.
        branches_of_no_window: the same for a round without a window.
        num_draft_roots, num_exit_roots: branches of each source in a round (without a window, with one).
        guessed_rows: rows of the steps after a window's first one, by position; 0 for steps that streams save. Empty
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
    """The acceptance of a record. It caches what schedules have in common, so use one object for many schedules.

    `max_new_tokens` cuts all texts; None leaves them as they are. All methods except `missing` raise `RecordError` for
    a schedule that the record does not cover.
    """

    def __init__(self, record: AcceptanceRecord, *, seed: int = 0) -> None:
        """Replay `record`, with `seed` for draws that texts do not determine.

        Raises `RecordError` if there is no prompt, or a prompt without text.
        """
        self.record = record
        self._joined = JoinedRecord(record, seed=seed)
        self._roots = RootRanks(self._joined)
        self._prompt_lengths = np.array([prompt.prompt_length for prompt in record.prompts])
        self._walks: dict[tuple[object, ...], Walk] = {}
        self._played: set[tuple[MethodTraits, tuple[object, ...]]] = set()

    def __repr__(self) -> str:
        """Show the source only: the texts would fill pages."""
        return f"<{type(self).__name__}: {self.source}>"

    @cached_property
    def missing(self) -> Callable[[Schedule], str | None]:
        """Cached function that returns what a schedule needs and the record lacks, or None."""
        return lru_cache(MOST_KEPT)(self.record.missing)

    @property
    def source(self) -> str:
        """Describe the source of acceptance in a few words."""
        record, count = self.record, len(self._prompt_lengths)
        if record.assumed is None:
            at = f" at temperature {record.temperature:g}, without what drawing takes" if record.temperature else ""
            return f"replay of {count} recorded {'texts' if at else 'prompts'}{at}"
        return f"assumed acceptance {record.assumed}, drawn as {count} texts of {record.max_new_tokens} tokens"

    def contexts(self, max_new_tokens: int | None) -> range:
        """Return the range of contexts in which a round of any prompt may start."""
        lengths = self._joined.lengths(max_new_tokens)
        return range(int(self._prompt_lengths.min()) - 1, int((self._prompt_lengths + lengths).max()) - 1)

    def _check(self, schedule: Schedule) -> None:
        if self.missing(schedule):
            self.record.check(schedule)

    def shape(self, schedule: Schedule) -> RoundShape:
        """Return the sizes of a round's operations; the number of exit roots of `hybrid` is an estimate."""
        record = self.record
        if schedule.is_tree:
            return tree_shape(schedule, record.trees[record.tree(schedule)].paths)
        num_tokens = schedule.num_speculative_tokens
        # branches that are not taken were not recorded: they count as long as the slowest recorded window
        guessing = self.guessing(schedule) if schedule.traits.overlaps else None
        num_steps = None if guessing is None else guessing.most_steps
        return RoundShape(num_tokens, self.num_exit_roots(schedule, num_tokens), branch_steps=num_steps)

    def num_exit_roots(self, schedule: Schedule, num_drafted: int) -> int:
        """Return the number of branches from exit roots in a round with a full window, or without one (0 drafted).

        A round without a window has one row, with the budget of a window's last row. For `hybrid` the number is an
        estimate, see `RootRanks.mean_exit_roots`.
        """
        if schedule.root_source == "hybrid":
            self._check(schedule)
            return self._roots.mean_exit_roots(schedule, num_drafted)
        budget = schedule.exit_roots_per_row
        return sum(budget) if num_drafted else budget[-1]

    def walk(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        """Return all rounds of all prompts; raises `ConfigError` for a method that cannot be simulated."""
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
        if (schedule.traits, key) not in self._played:  # run the method once, on the longest text, to validate it
            longest = max(self._texts(max_new_tokens), key=lambda text: int(text.stop - text.start))
            self._num_verified(schedule, [longest])
            self._played.add((schedule.traits, key))
        if key not in self._walks:
            self._walks[key] = self._walked(schedule, max_new_tokens)
        return self._walks[key]

    def branches(self, schedule: Schedule, walk: Walk) -> Ints:
        """Return `MISS`, `FROM_DRAFT` or `FROM_EXIT` for each round of `walk`, [rounds]; `MISS` for last rounds."""
        branches = np.full(len(walk.at), MISS, dtype=np.int64)
        if schedule.traits.overlaps:
            asked = walk.every.going_on
            branches[asked.index] = self._roots.branches(schedule, asked.at, asked.num_accepted)
        return branches

    def correction_ranks(self, schedule: Schedule) -> Ints:
        """Count rounds that end after row r with the target's token at candidate rank k, [window + 1, ranks].

        Candidates are those of the schedule's exit, else of the draft, without the drafted token of the row, as in
        `decoding.roots.choose_roots`. The last round of a text needs no branch and is not counted.
        """
        asked = self._walked(schedule, None).every.going_on
        ranks, _ = self._roots.ranks(schedule.exit_layer, schedule, asked.at, asked.num_accepted)
        num_ranks = self.record.num_candidates(schedule.exit_layer)
        counts = np.zeros((schedule.num_speculative_tokens + 1, num_ranks), dtype=np.int64)
        found = ranks < num_ranks
        np.add.at(counts, (asked.num_accepted[found], ranks[found]), 1)
        return counts

    def outcomes(self, schedule: Schedule, max_new_tokens: int | None) -> Outcomes:
        """Return the outcomes of rounds from each position of the texts."""
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
        refused = (
            np.where(accepted < drafted, self._chains(schedule).refused, NO_TOKEN)
            if is_chain
            else np.full_like(alone, NO_TOKEN)
        )
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
        """Return the steps of a draft with streams; None for a schedule without."""
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
        """Return the range of positions of each text."""
        starts, lengths = self._joined.starts.tolist(), self._joined.lengths(max_new_tokens)
        return [slice(start, start + length) for start, length in zip(starts, lengths, strict=True)]

    def _num_verified(self, schedule: Schedule, texts: Sequence[slice]) -> Ints:
        """Return the number of verified tokens by position: as the method decides in `texts`, all drafted elsewhere."""
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
"""Source of accepted tokens: recorded texts, or drawn ones (`AssumedAcceptance`)."""


def replay_of(acceptance: Acceptance) -> Replay:
    """Return `acceptance` as a `Replay`."""
    return acceptance if isinstance(acceptance, Replay) else Replay(record_of(acceptance))


def record_of(acceptance: Acceptance) -> AcceptanceRecord:
    """Return the record of an acceptance; raises `ConfigError` if it is no acceptance."""
    record = acceptance.record if isinstance(acceptance, Replay) else acceptance
    if not isinstance(record, AcceptanceRecord):
        raise ConfigError(f"acceptance is {shown(record)}: it is an AcceptanceRecord, or assumed, as Bernoulli(0.8) is")
    return record
