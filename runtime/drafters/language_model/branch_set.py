"""Continuations for likely outcomes of a round, drafted side by side while the target verifies.

What a step computes is part of the contract, as in `runtime.drafters.language_model.drafter`:

- Without features the first step is one row, at once: the window's last token, so that the whole window is cached and
  its last row has alternatives. Draft-sourced roots start at the next step, exit-sourced ones at the first step after
  their message came. A step takes every branch further by a token and a row each; its root is fed in the first of them.
- A draft with streams verifies guesses in every step of a branch but its first, so that a branch may go further by
  several tokens. All branches of a step have as many rows: one, and one for every guess that a window of one token has
  room for.
- With features nothing runs before the message. The first step feeds the window again, each token with the feature of
  its predecessor, together with all roots: window + R rows. Later steps are as without.
- Branches of one source start together and go on together, until the last of them is finished.
- Taking a branch (a hit) copies its keys to the text and drafts the rest of its window by steps of its own; a miss
  starts a fresh rollout. A branch taken before its first step is drafted by a fresh rollout, and still is a hit.

Shapes: legend of `runtime.models.decoder`, plus R branches, T rows of each; E width of all features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from decoding.messages import ExitSignal, Outcome, Root
from decoding.roots import choose_roots
from decoding.schedule import Schedule
from runtime.arrays import Array, concatenated, zeros
from runtime.drafters.language_model.draft_passes import DraftStates, Proposal, num_verified
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.window_drafter import Steps


@dataclass(slots=True, kw_only=True)
class _Branch:
    """One continuation: its place in the drafter's branches, what is drafted so far, and what streams start from."""

    root: Root
    index: int
    proposals: list[Proposal] = field(default_factory=list)
    entering_1D: Array | None = None

    @property
    def next_token(self) -> int:
        return self.proposals[-1].token if self.proposals else self.root.token


class BranchSet:
    """All branches of one round. `step` until nothing is unfinished, then or earlier `take`."""

    def __init__(self, drafter: Drafter, schedule: Schedule) -> None:
        self._drafter, self._schedule = drafter, schedule
        self._window = drafter.window
        self._num_committed = len(drafter.text)
        self._branches: dict[Root, _Branch] = {}
        self._sources: list[list[_Branch]] = []
        self._features_TE: Array | None = None
        self._window_is_cached = False

    @property
    def has_work(self) -> bool:
        """Whether a step can run before the next message."""
        if not self._window_is_cached and not self._schedule.exit_features:
            return True
        return any(self._is_unfinished(branch) for branch in self._branches.values())

    def join(self, signal: ExitSignal) -> None:
        """Add the exit's roots; `signal.features` [T, E] of the window's rows, where the schedule has features."""
        self._features_TE = signal.features
        self._add(signal.candidates, self._schedule.exit_roots_per_row)

    def step(self) -> int:
        """Run one step, and return its rows."""
        if not self._window_is_cached:
            return self._start() if self._schedule.exit_features else self._feed_last_drafted()
        unfinished = (source for source in self._sources if any(map(self._is_unfinished, source)))
        active = list(chain.from_iterable(unfinished))
        guesses = self._guess(active)
        ids_RT = [[branch.next_token, *own] for branch, own in zip(active, guesses, strict=True)]
        indices = slice(active[0].index, active[-1].index + 1)
        positions_RT = [self._places(branch, len(ids_RT[0])) for branch in active]
        states = self._drafter.feed_branches(indices, ids_RT, positions_RT)
        self._extend(active, ids_RT, positions_RT, states)
        return len(active) * len(ids_RT[0])

    def take(self, outcome: Outcome) -> tuple[bool, Steps]:
        """Return whether a branch has this outcome, and the remaining steps of the next window."""
        num_accepted, next_token = outcome
        committed = (*self._window.tokens[:num_accepted], next_token)
        branch = self._branches.get(Root(num_accepted, next_token))
        if branch is None or branch.entering_1D is None:
            features_TE = None if self._features_TE is None else self._features_TE[: len(committed)]
            return branch is not None, self._drafter.rollout(committed, features_TE)
        return True, self._drafter.finish_branch(committed, branch.index, branch.proposals, branch.entering_1D)

    def _is_unfinished(self, branch: _Branch) -> bool:
        return len(branch.proposals) < self._drafter.num_tokens

    def _add(self, candidates: Sequence[Sequence[int]], roots_per_row: Sequence[int]) -> None:
        roots = choose_roots(self._window.tokens, candidates, roots_per_row, known=self._branches.keys())
        added = [_Branch(root=root, index=index) for index, root in enumerate(roots, len(self._branches))]
        self._branches |= {branch.root: branch for branch in added}
        self._sources.append(added)

    def _feed_last_drafted(self) -> int:
        proposal = self._drafter.feed_last_drafted()
        self._drafter.start_branches(len(self._window.tokens))
        self._window_is_cached = True
        self._add((*self._window.alternatives, proposal.alternatives), self._schedule.draft_roots_per_row)
        return 1

    def _start(self) -> int:
        assert self._features_TE is not None, "a schedule with features has them in its signal"
        active, num_window = list(self._branches.values()), len(self._window.tokens)
        predecessors = [*range(num_window), *(branch.root.row for branch in active)]
        ids_R1, positions_R1 = [[branch.root.token] for branch in active], [self._places(one, 1) for one in active]
        states = self._drafter.feed_with_window(
            [*chain(*ids_R1)], [*chain(*positions_R1)], self._features_TE[predecessors]
        )
        self._window_is_cached = True
        by_branch = DraftStates(states.entering_TD[:, None], states.hidden_TD[:, None])
        self._extend(active, ids_R1, positions_R1, by_branch)
        return num_window + len(active)

    def _guess(self, active: Sequence[_Branch]) -> list[list[int]]:
        entering = [branch.entering_1D for branch in active if branch.entering_1D is not None]
        num_guesses = self._schedule.branch_guesses
        if not entering or not num_guesses:
            return [[]] * len(active)
        nothing_1D = zeros(entering[0], *entering[0].shape)
        entering_RD = concatenated([nothing_1D if one.entering_1D is None else one.entering_1D for one in active])
        indices = slice(active[0].index, active[-1].index + 1)
        return self._drafter.guess_in_branches(
            indices, entering_RD, [self._places(branch, num_guesses) for branch in active]
        )

    def _places(self, branch: _Branch, count: int) -> list[int]:
        """Return the positions of a branch's next rows; those after its window share the position after it."""
        root = self._num_committed + branch.root.row
        first, after = root + len(branch.proposals), root + self._drafter.num_tokens
        return [min(place, after) for place in range(first, first + count)]

    def _extend(
        self,
        active: Sequence[_Branch],
        ids_RT: Sequence[Sequence[int]],
        positions_RT: Sequence[Sequence[int]],
        states: DraftStates,
    ) -> None:
        """Give branches what their rows propose, as far as these follow their own tokens; states are [R, T, D]."""
        num_rows = len(ids_RT[0])
        places = [position + 1 for position in chain(*positions_RT)]
        proposals = self._drafter.propose(states.hidden_TD.reshape(-1, states.hidden_TD.shape[-1]), places)
        for number, (branch, ids) in enumerate(zip(active, ids_RT, strict=True)):
            proposed = proposals[number * num_rows : (number + 1) * num_rows]
            # in its first step a branch has rows of no meaning where others have guesses
            num_kept = 1 if branch.entering_1D is None else num_verified(ids, proposed)
            if num_kept := min(num_kept, self._drafter.num_tokens - len(branch.proposals)):
                branch.proposals += proposed[:num_kept]
                branch.entering_1D = states.entering_TD[number, num_kept - 1 : num_kept]
