"""The branches of a round: next windows for likely outcomes, drafted side by side while the target verifies.

The simulator assumes the following steps and rows, as those in `runtime.drafters.language_model.drafter`:

- Without features, the first step starts at once and has one row, the window's last token: it completes the cached
  window, and gives alternatives for its last row. Branches of draft-sourced roots start in the next step, those of
  exit-sourced roots in the first step after the exit message. A step extends every branch by one token, by one row; in
  a branch's first step, that row is its root.
- A draft with streams verifies their guesses in each step of a branch after its first, so that a step may extend a
  branch by several tokens. In such a step all branches have equally many rows: one, and one for each guess that a
  window with one token has room for.
- With features, nothing runs before the exit message. The first step feeds the window again, each token with the
  features of its predecessor, and all roots: window + R rows. Later steps are as without features.
- The branches of one source start together and continue until the last of them is finished.
- On a hit, the branch's keys are copied to the text, and further steps draft the rest of its window. On a miss a new
  rollout starts. A branch taken before its first step is a hit too, but a new rollout drafts it.

Shapes: legend of `runtime.models.decoder`; R branches, T rows of each, E width of all features.
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
    """A branch: its root, index in the KV caches, proposals so far, and the hidden state from which streams start."""

    root: Root
    index: int
    proposals: list[Proposal] = field(default_factory=list)
    entering_1D: Array | None = None

    @property
    def next_token(self) -> int:
        return self.proposals[-1].token if self.proposals else self.root.token


class BranchSet:
    """All branches of one round; call `step` while it `has_work`, and `take` at any time."""

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
        """Add the exit's roots; `signal.features` [T, E] are of the window's rows, if the schedule has features."""
        self._features_TE = signal.features
        self._add(signal.candidates, self._schedule.exit_roots_per_row)

    def step(self) -> int:
        """Run one step, and return its number of rows."""
        if not self._window_is_cached:
            return self._start() if self._schedule.exit_features else self._feed_last_drafted()
        unfinished = (source for source in self._sources if any(map(self._is_unfinished, source)))
        active = list(chain.from_iterable(unfinished))
        guesses = self._guess(active)
        ids_RT = [[branch.next_token, *guessed] for branch, guessed in zip(active, guesses, strict=True)]
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
        """Run the first step without features, and add draft-sourced roots; return its number of rows."""
        proposal = self._drafter.feed_last_drafted()
        self._drafter.start_branches(len(self._window.tokens))
        self._window_is_cached = True
        self._add((*self._window.alternatives, proposal.alternatives), self._schedule.draft_roots_per_row)
        return 1

    def _start(self) -> int:
        """Run the first step with features, and return its number of rows."""
        assert self._features_TE is not None, "a schedule with features has them in its signal"
        active, num_window = list(self._branches.values()), len(self._window.tokens)
        predecessors = [*range(num_window), *(branch.root.row for branch in active)]
        ids_R1, positions_R1 = [[branch.root.token] for branch in active], [self._places(one, 1) for one in active]
        states = self._drafter.feed_with_window(ids_R1, positions_R1, self._features_TE[predecessors])
        self._window_is_cached = True
        self._extend(active, ids_R1, positions_R1, states)
        return num_window + len(active)

    def _guess(self, active: Sequence[_Branch]) -> list[list[int]]:
        """Return the streams' guesses for each branch; meaningless ones for a branch before its first step."""
        entering = [branch.entering_1D for branch in active if branch.entering_1D is not None]
        num_guesses = self._schedule.branch_guesses
        if not entering or not num_guesses:
            return [[]] * len(active)
        zeros_1D = zeros(entering[0], *entering[0].shape)
        entering_RD = concatenated([zeros_1D if one.entering_1D is None else one.entering_1D for one in active])
        indices = slice(active[0].index, active[-1].index + 1)
        return self._drafter.guess_in_branches(
            indices, entering_RD, [self._places(branch, num_guesses) for branch in active]
        )

    def _places(self, branch: _Branch, count: int) -> list[int]:
        """Return the positions of a branch's next rows; rows beyond its window all have the position after it."""
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
        """Extend branches by what their rows propose, up to the first wrong guess; states are [R, T, D]."""
        num_rows = len(ids_RT[0])
        places = [position + 1 for position in chain(*positions_RT)]
        proposals = self._drafter.propose(states.hidden_TD.reshape(-1, states.hidden_TD.shape[-1]), places)
        for number, (branch, ids) in enumerate(zip(active, ids_RT, strict=True)):
            proposed = proposals[number * num_rows : (number + 1) * num_rows]
            # in a branch's first step, only its first row is meaningful
            num_kept = 1 if branch.entering_1D is None else num_verified(ids, proposed)
            if num_kept := min(num_kept, self._drafter.num_tokens - len(branch.proposals)):
                branch.proposals += proposed[:num_kept]
                branch.entering_1D = states.entering_TD[number, num_kept - 1 : num_kept]
