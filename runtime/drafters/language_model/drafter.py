"""The draft of one sequence: prefill, fresh rollouts, and what branches (`branch_set`) need from it.

What a step computes is part of the contract: the simulator plays the same steps with the same rows.

- A fresh rollout has as many steps as drafted tokens. Its first step feeds the committed tokens whose keys are
  missing: one row, or two after a window that was accepted whole (its last token has never been fed). A draft
  with features feeds every token committed since its last window again, each with its feature:
  `num_accepted` + 1 rows. Every later step is one row.
- Features: position t is fed token t and the target's features of position t - 1; a drafted token whose
  predecessor is not verified has none.
- A draft with streams (`Schedule.draft_streams`) feeds what they guess after its last proposal in the same step, as
  far as the window has room: 1 row and one for each guess. Its own proposals verify them: rows after a guess that
  is none of its own are forgotten. So the window is the one drafted without streams, in fewer steps (Speculative
  Streaming inside the draft, arXiv 2510.13161, section 3.3). The first step of a rollout, the steps of branches and
  the first one after a branch that was taken have no guesses.
- Each step proposes by `Sampling`: the argmax, or a draw of the text position's own from the truncated
  distribution; so a branch and a fresh rollout from the same text propose the same.

A step is never cut in the middle: steppers are generators that yield the rows of every step done.
Shapes: legend of `runtime.models.decoder`; E width of all features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoding.errors import LaneError
from decoding.messages import Window
from decoding.methods import METHODS
from decoding.schedule import Schedule
from runtime.drafters.language_model.model import DraftModel, DraftStates
from runtime.drafters.language_model.proposals import Proposal, Proposer, as_window
from runtime.drafters.streams.model import keys_of
from runtime.drafters.window_drafter import Steps, WindowDrafter
from runtime.models.kv_cache import KVCache
from runtime.models.masks import TreeMask, prefill_pieces
from runtime.verification.rules import GREEDY, Sampling
from runtime.wire.measurement import Measurement


class Drafter(WindowDrafter):
    """A draft model and the state of the sequence it drafts for.

    `text` is the committed text; `cached` holds the token of every cache slot that lies in text order (branches
    keep theirs after it).
    """

    timed_parts = ("draft_step", "draft_streams", "head_step")

    def __init__(self, model: DraftModel) -> None:
        self.model = model
        self.feature_layers = model.config.exit_features
        self.methods = tuple(name for name, traits in METHODS.items() if traits.has_draft_model)
        self.dtype = model.decoder.embedding.weight.dtype
        self.cache = KVCache(model.decoder.config, 0, dtype=self.dtype)
        self.text: list[int] = []
        self.cached: list[int] = []
        self.window = Window(())
        self.num_tokens = 0
        self.propose = Proposer(model.output)
        self._num_streams = 0
        self._prompt_feature: Tensor | None = None

    @torch.inference_mode()
    def prefill(
        self,
        prompt: Sequence[int],
        *,
        schedule: Schedule,
        capacity: int,
        sampling: Sampling = GREEDY,
        features_TE: Tensor | None = None,
    ) -> None:
        """See `WindowDrafter`; a schedule may ask for no more streams than the draft has."""
        sizes = self.model.config.streams
        if schedule.draft_streams > (sizes.num_streams if sizes else 0):
            msg = f"draft_streams is {schedule.draft_streams}: this draft has {sizes.num_streams if sizes else 'none'}"
            raise LaneError(msg)
        self._num_streams = schedule.draft_streams
        self.cache.start(slots_needed(schedule, capacity))
        self.num_tokens = schedule.num_speculative_tokens
        self.text, self.cached = list(prompt), list(prompt[:-1])
        self.model.output.add_prompt_tokens(prompt)
        self.propose = Proposer(self.model.output, num_alternatives=schedule.num_alternatives, sampling=sampling)
        self._prompt_feature = None
        if features_TE is not None:
            features_TE = torch.cat([features_TE.new_zeros(1, features_TE.shape[1]), features_TE])
            self._prompt_feature = features_TE[-1:]
        for start, stop, mask in prefill_pieces(len(prompt) - 1, self.dtype):
            self.feed(
                self.text[start:stop],
                positions=torch.arange(start, stop),
                mask=mask,
                features_TE=None if features_TE is None else features_TE[start:stop],
            )

    def rollout(self, committed: Sequence[int] = (), features_TE: Tensor | None = None) -> Steps:
        """See `WindowDrafter`."""
        first = self._missing(committed, with_features=features_TE is not None)
        features_TE = features_TE if committed else self._prompt_feature
        last = self._feed_text(first, features_TE).at(slice(-1, None))
        yield len(first)
        return (yield from self._finish(self.propose(last.hidden_TD, [self.cache.cursor]), last.entering_TD))

    def _finish(self, proposals: list[Proposal], entering_1D: Tensor | None = None) -> Steps:
        """Fill up the window after its proposals; the streams of the row last cached start from `entering_1D`."""
        while len(proposals) < self.num_tokens:
            num_guesses = min(self._num_streams, self.num_tokens - len(proposals) - 1)
            guesses = [] if entering_1D is None else self._guess(entering_1D, num_guesses)
            verified, entering_1D = self._verified_step([proposals[-1].token, *guesses])
            proposals += verified
            yield 1 + len(guesses)
        self.window = as_window(proposals)
        return self.window

    def feed_last_drafted(self) -> Proposal:
        """Feed the last token of the window, which drafting it leaves out; what it proposes."""
        states = self._feed_text(self.window.tokens[-1:])
        return self.propose(states.hidden_TD, [self.cache.cursor])[0]

    def feed_with_window(
        self, ids: Sequence[int], *, positions: Sequence[int], mask_RS: Tensor, features_TE: Tensor
    ) -> Tensor:
        """Feed the window again, now with features, and rows of branches after it: states of those rows [R, D].

        Args:
            ids: the rows' tokens.
            positions: their places in the text.
            mask_RS: what they see of the text, the window and each other, additive.
            features_TE: the target's features of the position before each token, of the window's and of the rows'.
        """
        tokens, start = self.window.tokens, len(self.text)
        stop = start + len(tokens)
        self._truncate(start)
        window_mask = self.cache.mask(len(tokens))
        if window_mask is None:
            window_mask = mask_RS.new_zeros(1, stop)
        blind = mask_RS.new_full((len(tokens), len(ids)), float("-inf"))
        states = self.feed(
            [*tokens, *ids],
            positions=torch.tensor([*range(start, stop), *positions]),
            mask=torch.cat([torch.cat([window_mask, blind], dim=1), mask_RS]),
            features_TE=features_TE,
        )
        self.cached += tokens
        return states.hidden_TD[len(tokens) :]

    def finish_branch(self, committed: Sequence[int], slots: list[int], proposals: list[Proposal]) -> Steps:
        """Put a branch after the committed text, and draft the rest of its window.

        It starts with the last of the tokens committed; `slots` hold its rows, which made the proposals.
        """
        self.text += committed
        destination = len(self.text) - 1
        self._truncate(destination)
        self.cache.gather(slots, destination)
        self.cached += [self.text[-1], *[proposal.token for proposal in proposals[:-1]]]
        return (yield from self._finish(proposals))

    def _verified_step(self, ids: Sequence[int]) -> tuple[list[Proposal], Tensor]:
        """Feed a proposal and guesses after it: what rows propose up to the first wrong guess, and the last's streams.

        The streams of the last of these rows start from what is returned second, [1, D].
        """
        stop = self.cache.cursor + len(ids)
        states = self._feed_text(ids)
        proposals = self.propose(states.hidden_TD, range(stop - len(ids) + 1, stop + 1))
        num_kept = 1
        while num_kept < len(ids) and ids[num_kept] == proposals[num_kept - 1].token:
            num_kept += 1
        self._truncate(stop - len(ids) + num_kept)
        return proposals[:num_kept], states.entering_TD[num_kept - 1 : num_kept]

    @torch.inference_mode()
    def _guess(self, entering_1D: Tensor, count: int) -> list[int]:
        """The tokens that the streams of the row last cached expect after its proposal."""
        if not count or self.model.streams is None:
            return []
        hidden_BRJD = self.model.streams(
            entering_1D[None],
            positions=torch.tensor([self.cache.cursor - 1]),
            mask=self.cache.mask(count),
            keys=keys_of(self.cache),
            num_streams=count,
        )
        best: list[int] = self.model.output.logits(hidden_BRJD[0, 0]).float().argmax(dim=-1).tolist()
        return [self.propose.ids[index] for index in best]

    def _feed_text(self, ids: Sequence[int], features_TE: Tensor | None = None) -> DraftStates:
        """Feed tokens after those cached in text order."""
        start, stop = self.cache.cursor, self.cache.cursor + len(ids)
        assert start == len(self.cached), "a step in text order needs a cache in text order"
        mask = self.cache.mask(len(ids))
        states = self.feed(ids, positions=torch.arange(start, stop), mask=mask, features_TE=features_TE)
        self.cached += ids
        return states

    @torch.inference_mode()
    def feed(
        self, ids: Sequence[int], *, positions: Tensor, mask: Tensor | None, features_TE: Tensor | None = None
    ) -> DraftStates:
        """One step at the cache's cursor, which moves after it."""
        return self.model.step(
            torch.tensor(ids), positions=positions, mask=mask, cache=self.cache, features_TE=features_TE
        )

    def timed_step(self, measurement: Measurement) -> Callable[[], object]:
        """See `WindowDrafter`; or so many guesses of the streams after a text."""
        if measurement.part == "draft_streams":
            return self._timed_guesses(measurement.rows, measurement.context)
        rows, context = measurement.rows, measurement.context
        if measurement.with_features and self.model.fuse is None:
            raise LaneError("a step with_features cannot be timed: this draft takes none")
        schedule = Schedule(method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=1)
        self.prefill([0], schedule=schedule, capacity=context + rows)
        self.propose = Proposer(self.model.output, num_alternatives=measurement.num_alternatives)
        self.cache.fill_random(context)
        ids = torch.randint(self.model.decoder.config.vocab_size, (rows,)).tolist()
        positions = [context] * rows
        mask = TreeMask(num_committed=context, num_window=0, num_branches=rows, num_tokens=1, dtype=self.dtype)
        mask.add([0] * rows)
        features_TE = None
        if measurement.with_features and self.model.fuse is not None:
            features_TE = torch.randn(rows, self.model.fuse.in_features, dtype=self.dtype)
        first = rows - (measurement.num_proposals or rows)

        def run() -> None:
            self.cache.set_length(context)
            mask_RS = mask.step(list(range(rows)), context) if rows > 1 else None
            states = self.feed(ids, positions=torch.tensor(positions), mask=mask_RS, features_TE=features_TE)
            self.propose(states.hidden_TD[first:], positions[first:])

        return run

    def _timed_guesses(self, count: int, context: int) -> Callable[[], object]:
        schedule = Schedule(
            method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=1, draft_streams=count
        )
        self.prefill([0], schedule=schedule, capacity=context + 1)
        self.cache.fill_random(context)
        entering_1D = torch.randn(1, self.model.decoder.config.hidden_size, dtype=self.dtype)
        return lambda: self._guess(entering_1D, count)

    def _missing(self, committed: Sequence[int], *, with_features: bool) -> list[int]:
        """Extend the text; forget what the cache holds beyond it; return the tokens it lacks."""
        keep = min(len(self.text), len(self.cached))
        self.text += committed
        if not with_features:
            last = len(self.text) - 1  # fed in any case: the window follows from its hidden state
            while keep < min(len(self.cached), last) and self.cached[keep] == self.text[keep]:
                keep += 1
        self._truncate(keep)
        return self.text[keep:]

    def _truncate(self, num_slots: int) -> None:
        """Forget every slot from `num_slots` on; those before it lie in text order."""
        del self.cached[num_slots:]
        self.cache.set_length(num_slots)


def slots_needed(schedule: Schedule, length: int) -> int:
    """Cache slots for a text of `length` tokens, the windows after it, and all branches' rows."""
    num_roots = sum(schedule.draft_roots_per_row) + sum(schedule.exit_roots_per_row)
    return length + 2 * schedule.num_rows + num_roots * schedule.num_speculative_tokens
