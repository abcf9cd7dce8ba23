"""Continuations for likely outcomes of a round, drafted side by side while the target verifies.

What a step computes is part of the contract, as in `runtime.drafters.language_model.drafter`:

- Without features the first step is one row, at once: the window's last token, so that every row of the window is
  cached and its last row has alternatives. Draft-sourced roots start at the next step, exit-sourced ones at the
  first step after their message came. One step advances every unfinished branch by one token, one row each.
- With features nothing runs before the message. The first step feeds the window again, each token with the
  feature of its predecessor, together with all roots: window + R rows. Later steps are R rows.
- A branch is finished after as many steps as a window has tokens; its root is fed in the first of them.
- Taking a branch (a hit) copies its keys to the text and drafts the rest of its window by steps of one row.
  Without such a branch (a miss) everything is dropped and a fresh rollout starts. Should a branch be taken before
  its first step, its window is drafted by the steps of a fresh rollout, and it still is a hit.

Shapes: legend of `runtime.models.decoder`, plus R branches; E width of all features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from decoding.messages import ExitSignal, Outcome, Root
from decoding.roots import choose_roots
from decoding.schedule import Schedule
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.proposals import Proposal
from runtime.drafters.window_drafter import Steps


@dataclass(slots=True, kw_only=True)
class _Branch:
    """One continuation: its place in the drafter's branches, and what is drafted so far."""

    root: Root
    index: int
    proposals: list[Proposal] = field(default_factory=list)

    @property
    def next_token(self) -> int:
        return self.proposals[-1].token if self.proposals else self.root.token


class BranchSet:
    """All branches of one round. `step` until nothing is unfinished, then or earlier `take`."""

    def __init__(self, drafter: Drafter, schedule: Schedule) -> None:
        self._drafter = drafter
        self._schedule = schedule
        self._window = drafter.window
        self._num_committed = len(drafter.text)
        self._branches: dict[Root, _Branch] = {}
        self._features_TE: Tensor | None = None
        self._window_is_cached = False

    @property
    def has_work(self) -> bool:
        """Whether there is a step to do before another message comes."""
        if not self._window_is_cached and not self._schedule.exit_features:
            return True
        return any(self._is_unfinished(branch) for branch in self._branches.values())

    def join(self, signal: ExitSignal) -> None:
        """Add the exit's roots; `signal.features` [T, E] of the window's rows, where the schedule has features."""
        self._features_TE = signal.features
        self._add(signal.candidates, self._schedule.exit_roots_per_row)

    def step(self) -> int:
        """Do one step; the rows it had."""
        if not self._window_is_cached and not self._schedule.exit_features:
            return self._feed_last_drafted()
        active = [branch for branch in self._branches.values() if self._is_unfinished(branch)]
        positions = [self._num_committed + branch.root.row + len(branch.proposals) for branch in active]
        ids = [branch.next_token for branch in active]
        if self._window_is_cached:
            # those that started together finish together, first the first
            indices = slice(active[0].index, active[-1].index + 1)
            hidden_RD = self._drafter.feed_branches(indices, ids, positions)
            num_rows = len(active)
        else:
            assert self._features_TE is not None, "a schedule with features has them in its signal"
            num_rows = len(self._window.tokens) + len(active)
            predecessors = [*range(len(self._window.tokens)), *(branch.root.row for branch in active)]
            hidden_RD = self._drafter.feed_with_window(ids, positions, self._features_TE[predecessors])
            self._window_is_cached = True
        proposals = self._drafter.propose(hidden_RD, [position + 1 for position in positions])
        for branch, proposal in zip(active, proposals, strict=True):
            branch.proposals.append(proposal)
        return num_rows

    def take(self, outcome: Outcome) -> tuple[bool, Steps]:
        """Whether a branch has this outcome, and the steps still missing from the next window."""
        num_accepted, next_token = outcome
        committed = (*self._window.tokens[:num_accepted], next_token)
        branch = self._branches.get(Root(num_accepted, next_token))
        if branch is None or not branch.proposals:
            features_TE = None if self._features_TE is None else self._features_TE[: len(committed)]
            return branch is not None, self._drafter.rollout(committed, features_TE)
        return True, self._drafter.finish_branch(committed, branch.index, branch.proposals)

    def _is_unfinished(self, branch: _Branch) -> bool:
        return len(branch.proposals) < self._drafter.num_tokens

    def _add(self, candidates: Sequence[Sequence[int]], roots_per_row: Sequence[int]) -> None:
        roots = choose_roots(self._window.tokens, candidates, roots_per_row, known=self._branches.keys())
        for root in roots:
            self._branches[root] = _Branch(root=root, index=len(self._branches))

    def _feed_last_drafted(self) -> int:
        proposal = self._drafter.feed_last_drafted()
        self._drafter.start_branches(len(self._window.tokens))
        self._window_is_cached = True
        self._add((*self._window.alternatives, proposal.alternatives), self._schedule.draft_roots_per_row)
        return 1
