"""The drafter of a draft model for one sequence.

The simulator assumes the following steps and rows:

- A rollout has one step per drafted token. Its first step feeds the committed tokens whose keys are missing: one row,
  or two after a window that was accepted whole. A draft with features feeds every token committed since its last window
  again, each with the target's features of the position before. Every later step has one row.
- A draft with streams feeds, with its last proposal, what streams guess after it, as far as the window has room. The
  draft's proposals verify the guesses, so the window is that without streams, in fewer steps (arXiv 2510.13161, section
  3.3). The first step of a window has no guesses.
- Random numbers depend on the text position, so a branch and a rollout from the same text propose the same tokens.

Generators of steps yield the number of rows of each. Shapes: legend of `runtime.models.decoder`; E width of all
features.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from decoding.messages import Window
from decoding.methods import METHODS
from decoding.schedule import Schedule
from runtime.arrays import Array, concatenated, inference, zeros
from runtime.backends.backend import prefill_pieces
from runtime.backends.kv_memory import BranchCaches
from runtime.drafters.language_model.draft_passes import (
    DraftPasses,
    DraftStates,
    Proposal,
    Proposer,
    as_window,
    num_verified,
)
from runtime.drafters.window_drafter import Steps, WindowDrafter
from runtime.verification.rules import GREEDY, Sampling
from runtime.wire.channel import Block
from runtime.wire.measurement import Measurement

_FEW_BRANCHES: Final = 2
"""Fewest branches to prepare for if draft and exit may name the same roots."""


class Drafter(WindowDrafter):
    """A draft model and its sequence: committed tokens (`text`), tokens in each slot (`cached`), and branches."""

    timed_parts = ("draft_step", "draft_start", "draft_streams", "head_step")

    def __init__(self, model: DraftPasses) -> None:
        self.model = model
        self.feature_layers = model.config.exit_features
        self.methods = tuple(name for name, traits in METHODS.items() if traits.has_draft_model)
        self.backend = backend = model.on_a_backend()
        self.cache: Any = backend.new_text()
        self.branches: BranchCaches = backend.new_branches(0)
        self.num_streams = model.num_streams
        self.text: list[int] = []
        self.cached: list[int] = []
        self.window = Window(())
        self.num_tokens = 0
        self.propose = Proposer(model.output)
        self._num_streams = 0
        self._prompt_feature: Array | None = None

    def array(self, block: Block) -> Array:
        """See `WindowDrafter`."""
        return self.backend.array(block)

    def prepare(self, schedule: Schedule, *, num_prompt: int, capacity: int) -> None:
        """See `WindowDrafter`."""
        self._make_branches(num_roots(schedule))
        rows = {1, 2, schedule.num_speculative_tokens + 1} if schedule.reads_features else {1, 2}
        self.backend.prepare(
            self.model.plan(
                num_slots=slots_needed(schedule, capacity),
                num_prompt=num_prompt,
                rows=tuple(rows),
                with_features=schedule.reads_features,
                num_branches=num_roots(schedule),
                least_branches=_FEW_BRANCHES if schedule.root_source == "hybrid" else None,
            )
        )

    @inference
    def prefill(
        self,
        prompt: Sequence[int],
        *,
        schedule: Schedule,
        capacity: int,
        sampling: Sampling = GREEDY,
        features_TE: Array | None = None,
    ) -> None:
        """See `WindowDrafter`; raises `LaneError` for more streams than the draft has."""
        self.model.require_streams(schedule.draft_streams)
        self._num_streams = schedule.draft_streams
        self.make_room(slots_needed(schedule, capacity), num_roots(schedule))
        self.num_tokens = schedule.num_speculative_tokens
        self.text, self.cached = list(prompt), list(prompt[:-1])
        self.model.output.add_prompt_tokens(prompt)
        self.propose = Proposer(self.model.output, num_alternatives=schedule.num_alternatives, sampling=sampling)
        self._prompt_feature = None
        if features_TE is not None:
            # the first token has no position before it
            features_TE = concatenated([zeros(features_TE, 1, features_TE.shape[1]), features_TE])
            self._prompt_feature = features_TE[-1:]
        for start, stop in prefill_pieces(len(prompt) - 1):
            self.feed(self.text[start:stop], None if features_TE is None else features_TE[start:stop])
        self.backend.wait()

    def make_room(self, num_slots: int, num_branches: int) -> None:
        """Make room for a sequence of `num_slots` slots, and as many for each branch."""
        self.cache.start(num_slots)
        self._make_branches(num_branches)
        self.branches.start(num_slots)

    def _make_branches(self, num_branches: int) -> None:
        if num_branches != self.branches.num_branches:
            self.branches = self.backend.new_branches(num_branches)

    def rollout(self, committed: Sequence[int] = (), features_TE: Array | None = None) -> Steps:
        """See `WindowDrafter`."""
        first = self._missing(committed, with_features=features_TE is not None)
        features_TE = features_TE if committed else self._prompt_feature
        last = self._feed_text(first, features_TE).at(slice(-1, None))
        proposals = self.propose(last.hidden_TD, [self.cache.cursor])
        yield len(first)
        return (yield from self._finish(proposals, last.entering_TD))

    def _finish(self, proposals: list[Proposal], entering_1D: Array) -> Steps:
        """Draft the rest of the window after `proposals`; streams of the last cached row start from `entering_1D`."""
        while len(proposals) < self.num_tokens:
            num_guesses = min(self._num_streams, self.num_tokens - len(proposals) - 1)
            guesses = self.guess(entering_1D, num_guesses)
            ids, start = [proposals[-1].token, *guesses], self.cache.cursor
            states = self._feed_text(ids)
            proposed = self.propose(states.hidden_TD, range(start + 1, start + len(ids) + 1))
            num_kept = num_verified(ids, proposed)
            self._truncate(start + num_kept)
            proposals += proposed[:num_kept]
            entering_1D = states.entering_TD[num_kept - 1 : num_kept]
            yield len(ids)
        self.window = as_window(proposals)
        return self.window

    def feed_last_drafted(self) -> Proposal:
        """Feed the last token of the window, which its rollout has not fed; return what it proposes."""
        states = self._feed_text(self.window.tokens[-1:])
        return self.propose(states.hidden_TD, [self.cache.cursor])[0]

    def start_branches(self, num_tokens: int) -> None:
        """Copy the keys of the committed text and of the first `num_tokens` tokens of the window to all branches."""
        num_text = len(self.text)
        self.branches.follow(self.cache, num_final=num_text, stop=num_text + num_tokens)

    @inference
    def feed_branches(
        self,
        branches: slice,
        ids_RT: Sequence[Sequence[int]],
        positions_RT: Sequence[Sequence[int]],
        added_RTD: Array | None = None,
    ) -> DraftStates:
        """Feed the next tokens of some branches, perhaps with what features add; states are [R, T, D]."""
        rows = self.branches.rows(branches, positions_RT)
        return self.model.run(np.array(ids_RT, np.int64), positions=rows.positions_RT, cache=rows, added_BTD=added_RTD)

    @inference
    def guess_in_branches(
        self, branches: slice, entering_RD: Array, positions_RJ: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Return the tokens that streams guess after the last proposals of some branches.

        `positions_RJ` are the positions of the stream rows, from that of the last proposal on; their slots are
        overwritten.
        """
        rows = self.branches.rows(branches, positions_RJ)
        last_R1 = np.array([[positions[0] - 1] for positions in positions_RJ])
        guessed_R1J = self.model.guess(
            entering_RD[:, None], positions=last_R1, cache=rows, num_streams=len(positions_RJ[0])
        )
        return [[self.propose.ids[index] for index in guessed] for guessed in guessed_R1J[:, 0].tolist()]

    @inference
    def feed_with_window(
        self, ids_R1: Sequence[Sequence[int]], positions_R1: Sequence[Sequence[int]], features_TE: Array
    ) -> DraftStates:
        """Feed the window again with features, then the roots of all branches; return the roots' states, [R, 1, D].

        `features_TE` are of the position before every token fed.
        """
        tokens, start = self.window.tokens, len(self.text)
        positions, added_TD = np.arange(start, start + len(tokens)), self.model.fused(features_TE)
        of_window, of_roots = added_TD[None, : len(tokens)], added_TD[len(tokens) :, None]
        self._truncate(start)
        self.model.run(np.array([tokens]), positions=positions, cache=self.cache, added_BTD=of_window)
        self.cache.advance(len(tokens))
        self.cached += tokens
        self.start_branches(len(tokens))
        return self.feed_branches(slice(0, len(ids_R1)), ids_R1, positions_R1, of_roots)

    def finish_branch(
        self, committed: Sequence[int], branch: int, proposals: list[Proposal], entering_1D: Array
    ) -> Steps:
        """Continue the text with a branch, whose root is the last committed token, and draft the rest of its window."""
        self.text += committed
        start = len(self.text) - 1
        stop = start + len(proposals)
        self._truncate(start)
        self.branches.give(branch, start, stop, self.cache)
        self.cache.set_length(stop)
        self.cached += [self.text[-1], *[proposal.token for proposal in proposals[:-1]]]
        return (yield from self._finish(proposals, entering_1D))

    @inference
    def guess(self, entering_1D: Array, count: int) -> list[int]:
        """Return the tokens that streams of the last cached row guess after its proposal."""
        positions = np.array([self.cache.cursor - 1])
        guessed_BRJ = self.model.guess(entering_1D[None], positions=positions, cache=self.cache, num_streams=count)
        return [self.propose.ids[index] for index in guessed_BRJ[0, 0].tolist()]

    def _feed_text(self, ids: Sequence[int], features_TE: Array | None = None) -> DraftStates:
        """Feed the next tokens, and record them in `cached`."""
        assert self.cache.cursor == len(self.cached), "the cache does not hold what it should"
        states = self.feed(ids, features_TE)
        self.cached += ids
        return states

    @inference
    def feed(self, ids: Sequence[int], features_TE: Array | None = None) -> DraftStates:
        """Run one step over the next rows, and move the cache's cursor behind them; states are [T, D]."""
        positions = np.arange(self.cache.cursor, self.cache.cursor + len(ids))
        return self.model.step(np.array(ids, np.int64), positions=positions, cache=self.cache, features_TE=features_TE)

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """See `WindowDrafter`."""
        from runtime.drafters.language_model.timed_steps import timed_step

        return timed_step(self, measurement)

    def _missing(self, committed: Sequence[int], *, with_features: bool) -> list[int]:
        """Append committed tokens to the text, keep the cached tokens that agree with it, and return those to feed."""
        keep = min(len(self.text), len(self.cached))
        self.text += committed
        if not with_features:
            last = len(self.text) - 1  # always fed, as its hidden state gives the first drafted token
            while keep < min(len(self.cached), last) and self.cached[keep] == self.text[keep]:
                keep += 1
        self._truncate(keep)
        return self.text[keep:]

    def _truncate(self, num_slots: int) -> None:
        """Keep the first `num_slots` slots."""
        del self.cached[num_slots:]
        self.cache.set_length(num_slots)


def slots_needed(schedule: Schedule, length: int) -> int:
    """Return the slots for `length` tokens and two windows after them."""
    return length + 2 * schedule.num_rows


def num_roots(schedule: Schedule) -> int:
    """Return the largest number of branches of a round."""
    return sum(schedule.draft_roots_per_row) + sum(schedule.exit_roots_per_row)
