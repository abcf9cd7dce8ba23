"""Replays an acceptance record: at temperature 0 the exact rounds that a schedule would go through.

Above it a record holds sampled texts. Under the rule `match`, and with trees, what is accepted follows from a text; the
ratio rule draws which of its tokens were drafted, so that over texts and seeds rounds are distributed as in real runs.

A round from position i drafts the recorded tokens from there; what agrees with the text is accepted, and the text's
next token is the target's own. Where the text ends the sequence is finished; what the target would have said
after it is unknown: it is `NO_TOKEN`, and such a round may have accepted more than was recorded.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from costs.cost_model import Ints
from costs.round_plan import RoundShape, tree_shape
from decoding.messages import NO_WINDOW, Verdict, Window
from decoding.record import AcceptanceRecord, round_starts
from decoding.schedule import Schedule
from sim.acceptance.acceptance_model import MISS, NO_TOKEN, Acceptance, Answers
from sim.acceptance.branch_hits import RootRanks
from sim.acceptance.joined_record import Drafts, JoinedRecord
from sim.acceptance.stream_guesses import Guessing
from sim.acceptance.walk import Rounds, Walk

Decided = tuple[list[Window], list[Verdict]]
"""What is drafted in each round, and what the target decides on it."""

MOST_KEPT = 4096
"""Of so many schedules is kept whether they are covered: that is asked several times of each."""


class PerPositionOutcomes(NamedTuple):
    """What rounds from every position of all texts together would do; P prompts, T positions.

    Attributes:
        starts, lengths, prompt_lengths: of every prompt its first position, its new tokens and its prompt's, [P].
        num_drafted, num_accepted: tokens in the window, and those accepted, [T].
        branches: `MISS`, `FROM_DRAFT` or `FROM_EXIT`, [T]; without meaning where the round is the text's last.
        branches_of_no_window: the same of a round in which nothing was drafted, [T].
    """

    starts: Ints
    lengths: Ints
    prompt_lengths: Ints
    num_drafted: Ints
    num_accepted: Ints
    branches: Ints
    branches_of_no_window: Ints


class Replay:
    """The acceptance of a record. It keeps what schedules have in common: make one and ask it often."""

    def __init__(self, record: AcceptanceRecord, *, seed: int = 0) -> None:
        """Draw by `seed` what a text leaves open; raise `RecordError` if there is no prompt, or one without text."""
        self.record = record
        self._joined = JoinedRecord(record, seed=seed)
        self._roots = RootRanks(self._joined)
        self._prompt_lengths = np.array([prompt.prompt_length for prompt in record.prompts])
        self._walks: dict[tuple[object, ...], Walk] = {}
        self._missing: dict[Schedule, str | None] = {}
        self._starts_of: dict[Rounds, Ints] = {}  # among the positions of all texts together
        self._most_steps: dict[tuple[int, int, bool], int] = {}

    @property
    def source(self) -> str:
        """See `Acceptance`."""
        record, count = self.record, len(self._prompt_lengths)
        if record.assumed is None:
            at = f" at temperature {record.temperature:g}" if record.temperature else ""
            return f"replay of {count} recorded {'texts' if at else 'prompts'}{at}"
        return f"assumed acceptance {record.assumed}, drawn as {count} texts of {record.max_new_tokens} tokens"

    def contexts(self, max_new_tokens: int | None) -> range:
        """See `Acceptance`."""
        lengths = self._joined.lengths(max_new_tokens)
        return range(int(self._prompt_lengths.min()) - 1, int((self._prompt_lengths + lengths).max()) - 1)

    def missing(self, schedule: Schedule) -> str | None:
        """See `Acceptance`."""
        if schedule not in self._missing:
            if len(self._missing) >= MOST_KEPT:
                self._missing.clear()
            self._missing[schedule] = self.record.missing(schedule)
        return self._missing[schedule]

    def _check(self, schedule: Schedule) -> None:
        if self.missing(schedule):
            self.record.check(schedule)

    def shape(self, schedule: Schedule) -> RoundShape:
        """See `Acceptance`; the exit's roots of `hybrid` are an estimate, see `num_exit_roots`."""
        record = self.record
        if schedule.is_tree:
            return tree_shape(schedule, record.trees[record.tree(schedule)].paths)
        num_tokens = schedule.num_speculative_tokens
        num_roots = self.num_exit_roots(schedule, num_tokens)
        return RoundShape(num_tokens, num_roots, branch_steps=self._branch_steps(schedule))

    def num_exit_roots(self, schedule: Schedule, num_drafted: int) -> int:
        """Branches that the exit starts in rounds with a window of all its tokens, or none.

        Without a window there is one row, that after a window that was accepted whole. Of `hybrid` it is an estimate,
        see `RootRanks.mean_exit_roots`.
        """
        if schedule.root_source == "hybrid":
            self._check(schedule)
            return self._roots.mean_exit_roots(schedule, num_drafted)
        budget = schedule.exit_roots_per_row
        return sum(budget) if num_drafted else budget[-1]

    def answers(self, schedule: Schedule, max_new_tokens: int | None) -> list[Answers]:
        """See `Acceptance`."""
        joined, walk = self._joined, self.walk(schedule, max_new_tokens)
        at = joined.starts[walk.prompt] + walk.position
        row = at + walk.num_accepted
        following = joined.text[np.minimum(row, len(joined.text) - 1)]
        next_tokens = np.where(row < joined.ends[at], following, NO_TOKEN).tolist()
        decide = self._decided_trees if schedule.is_tree else self._decided_chains
        windows, verdicts = decide(schedule, walk, at, next_tokens)
        rounds = list(zip(windows, verdicts, self.branches(schedule, walk).tolist(), strict=True))
        bounds = pairwise([*np.flatnonzero(walk.is_first).tolist(), len(rounds)])
        prompts = zip(self._prompt_lengths.tolist(), joined.lengths(max_new_tokens), bounds, strict=True)
        return [Answers(before, length, rounds[first:end]) for before, length, (first, end) in prompts]

    def walk(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        """See `Acceptance`."""
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
        key = (*window, max_new_tokens)
        if key not in self._walks:
            self._walks[key] = self._walked(schedule, max_new_tokens)
        return self._walks[key]

    def branches(self, schedule: Schedule, walk: Walk) -> Ints:
        """See `Acceptance`."""
        branches = np.full(len(walk.prompt), MISS, dtype=np.int64)
        if schedule.traits.overlaps:
            asked = walk.every.going_on
            if asked not in self._starts_of:
                self._starts_of[asked] = self._joined.starts[walk.prompt[asked.index]] + walk.position[asked.index]
            branches[asked.index] = self._roots.branches(schedule, self._starts_of[asked], asked.num_accepted)
        return branches

    def per_position(self, schedule: Schedule, max_new_tokens: int | None) -> PerPositionOutcomes:
        """What a round from every position of the texts would do."""
        self._check(schedule)
        joined, accepted = self._joined, self._accepted(schedule)
        branches = np.full(len(accepted), MISS, dtype=np.int64)
        alone = branches
        if schedule.traits.overlaps:
            at = np.arange(len(accepted))
            asked = np.flatnonzero(at + accepted < joined.ends)
            branches[asked] = self._roots.branches(schedule, asked, accepted[asked])
            alone = self._roots.branches_of_no_window(schedule, at)
        return PerPositionOutcomes(
            starts=joined.starts,
            lengths=np.array(joined.lengths(max_new_tokens)),
            prompt_lengths=self._prompt_lengths,
            num_drafted=self._drafted(schedule),
            num_accepted=accepted,
            branches=branches,
            branches_of_no_window=alone,
        )

    def guessing(self, schedule: Schedule) -> Guessing | None:
        """See `Acceptance`."""
        if not schedule.draft_streams:
            return None
        self._check(schedule)
        return Guessing(
            self._joined.stream_hits(with_features=schedule.exit_features),
            self._joined.starts,
            num_tokens=schedule.num_speculative_tokens,
            num_streams=schedule.draft_streams,
        )

    def _branch_steps(self, schedule: Schedule) -> int | None:
        """Steps of a round's slowest branch: those of the slowest recorded window, for lack of branches not taken."""
        if not schedule.draft_streams or not schedule.traits.overlaps:
            return None
        key = (schedule.num_speculative_tokens, schedule.draft_streams, schedule.exit_features)
        if key not in self._most_steps and (guessing := self.guessing(schedule)):
            self._most_steps[key] = guessing.most_steps
        return self._most_steps[key]

    def _accepted(self, schedule: Schedule) -> Ints:
        """Drafted tokens that are accepted in a round from every position of the texts."""
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
        """Tokens in the window of a round from every position of the texts."""
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

    def _decided_chains(self, schedule: Schedule, walk: Walk, at: Ints, next_tokens: list[int]) -> Decided:
        """Windows and verdicts of rounds from the positions `at` of the texts."""
        verdicts = list(map(Verdict, walk.num_accepted.tolist(), next_tokens))
        if schedule.traits.window == "none":
            return [NO_WINDOW] * len(at), verdicts
        drafted = zip(self._chains(schedule).tokens[at].tolist(), walk.num_drafted.tolist(), strict=True)
        return [Window(tuple(tokens[:count])) for tokens, count in drafted], verdicts

    def _decided_trees(self, schedule: Schedule, walk: Walk, at: Ints, next_tokens: list[int]) -> Decided:
        """The same of trees; a target that drafts itself has none at first, and verdicts bring the next one."""
        joined, accepted = self._joined, walk.num_accepted.tolist()
        ranks = joined.tree_ranks(self.record.tree(schedule))[at].tolist()
        paths = [tuple(nodes[:count]) for nodes, count in zip(ranks, accepted, strict=True)]
        tokens = (joined.text[place : place + count].tolist() for place, count in zip(at, accepted, strict=True))
        windows = list(map(_tree, walk.num_drafted.tolist(), paths, tokens))
        brought = [*windows[1:], NO_WINDOW] if schedule.traits.drafts_itself else [None] * len(at)
        decided = zip(accepted, next_tokens, paths, brought, strict=True)
        return windows, [Verdict(count, token, path=path, window=window) for count, token, path, window in decided]

    def _walked(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        joined, accepted = self._joined, self._accepted(schedule)
        counts, lengths = accepted.tolist(), joined.lengths(max_new_tokens)
        texts = zip(joined.starts.tolist(), lengths, strict=True)
        rounds = [round_starts(counts[start : start + length], length) for start, length in texts]
        prompt = np.repeat(np.arange(len(rounds)), list(map(len, rounds)))
        position = np.concatenate(rounds)
        at = joined.starts[prompt] + position
        left = np.array(lengths)[prompt] - position
        return Walk(
            prompt=prompt,
            position=position,
            context=self._prompt_lengths[prompt] + position - 1,
            num_drafted=self._drafted(schedule)[at],
            num_accepted=accepted[at],
            num_committed=np.minimum(accepted[at] + 1, left),
            is_first=position == 0,
            is_last=accepted[at] + 1 >= left,
            contexts=self.contexts(max_new_tokens),
            num_prompts=len(rounds),
            is_drawn=self.record.assumed is not None,
        )


def _tree(num_drafted: int, path: tuple[int, ...], accepted: list[int]) -> Window:
    """A tree of the real width; only its `accepted` tokens are known, and the `path` of their places in its order."""
    tokens, parents, parent = [NO_TOKEN] * num_drafted, [-1] * num_drafted, -1
    for node, token in zip(path, accepted, strict=True):
        tokens[node], parents[node], parent = token, parent, node
    return Window(tuple(tokens), parents=tuple(parents))


def as_acceptance(acceptance: Acceptance | AcceptanceRecord) -> Acceptance:
    """A record as the acceptance model that replays it."""
    return Replay(acceptance) if isinstance(acceptance, AcceptanceRecord) else acceptance
