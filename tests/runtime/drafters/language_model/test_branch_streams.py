"""Branches of a draft with streams hold what it drafts one token at a time, in fewer steps."""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import ClassVar

import pytest
import torch

from decoding.messages import ExitSignal
from runtime.drafters.language_model import branch_set
from runtime.drafters.language_model.branch_set import BranchSet
from runtime.drafters.language_model.drafter import Drafter
from runtime.models.decoder import causal_mask
from tests.runtime import plain
from tests.runtime.drafters.language_model.test_draft_streams import draft_model
from tests.runtime.drafters.language_model.test_drafter import (
    PROMPT,
    begin,
    made_up_features,
    made_up_signal,
    mirror,
    run,
    steps_of,
)
from tests.tiny_models import VOCAB_SIZE


class Foretelling(Drafter):
    """Its streams know what it will say, in branches too; without `is_right` they always name another token."""

    is_right = True
    said_before: ClassVar[dict] = {}
    """The token that drafts said after texts: several schedules ask for the same ones."""

    def prefill(self, prompt, *, features_TE=None, **options):
        self.fed: dict[int, dict[int, int]] = {}
        self.known, self.known_in_branches = features_TE, []
        super().prefill(prompt, features_TE=features_TE, **options)

    def rollout(self, committed=(), features_TE=None):
        if features_TE is not None:
            self.known = torch.cat([self.known, features_TE])
        return super().rollout(committed, features_TE)

    def finish_branch(self, committed, branch, *args):
        if self.known is not None:
            self.known = self.known_in_branches[branch]
        return super().finish_branch(committed, branch, *args)

    def feed_branches(self, branches, ids_RT, positions_RT, added_RTD=None):
        for branch, ids, positions in zip(range(branches.start, branches.stop), ids_RT, positions_RT, strict=True):
            # rows after the window share a place, and the first there is the last one that was meant
            self.fed.setdefault(branch, {}).update(reversed([*zip(positions, ids, strict=True)]))
        return super().feed_branches(branches, ids_RT, positions_RT, added_RTD)

    def feed_with_window(self, ids_R1, positions_R1, features_TE):
        before = len(self.text)
        self.known_in_branches = [
            torch.cat([self.known, features_TE[: place - before], own[None]])
            for (place,), own in zip(positions_R1, features_TE[len(self.window.tokens) :], strict=True)
        ]
        return super().feed_with_window(ids_R1, positions_R1, features_TE)

    def start_branches(self, num_tokens):
        if num_tokens:
            self.fed = {}
        super().start_branches(num_tokens)

    def guess(self, entering_1D, count):
        return self._foretold(self.cached, count, self.known)

    def guess_in_branches(self, branches, entering_RD, positions_RJ):
        indices = range(branches.start, branches.stop)
        return [
            self._foretold(self._text_of(branch, positions[0]), len(positions), self._known_in(branch))
            for branch, positions in zip(indices, positions_RJ, strict=True)
        ]

    def _text_of(self, branch, stop):
        fed = self.fed.get(branch, {})
        first = min(fed, default=stop)
        return [*[*self.text, *self.window.tokens][:first], *(fed[place] for place in range(first, stop))]

    def _known_in(self, branch):
        return None if self.known is None else self.known_in_branches[branch]

    def _foretold(self, text, count, known_TE):
        said = [*text]
        known_TE = None if known_TE is None else known_TE[: len(text) - 1]
        for _ in range(count + 1):
            said.append(self._next(said, known_TE))
        ahead = said[len(text) + 1 :]
        return ahead if self.is_right else [(id_ + 1) % VOCAB_SIZE for id_ in ahead]

    def _next(self, text, known_TE):
        features = None
        if known_TE is not None:  # drafted tokens have no features, or zeros
            known_TE = torch.nn.functional.pad(known_TE, (0, 0, 0, len(text) - len(known_TE)))
            features = known_TE.numpy().tobytes()
        asked = self.model, tuple(self.model.output.ids.tolist()), tuple(text), features
        if asked not in self.said_before:
            [self.said_before[asked]], _ = plain.draft_text(self.model, text, 1, features_TE=known_TE)
        return self.said_before[asked]


class Misled(Foretelling):
    is_right = False


def test_of_these_streams_some_guesses_are_right_and_some_wrong():
    """Else the law of branches (`test_drafter`) would prove little."""
    gained = []
    for seed in range(20):
        schedule = mirror(6, root_source="exit", exit_layer=2, exit_top_k=2, draft_streams=3)
        drafter = begin(draft_model(), schedule)
        run(drafter.rollout())
        branches = BranchSet(drafter, schedule)
        branches.join(made_up_signal(7, seed, None))
        branches.step(), branches.step()
        branches.step()
        gained += [len(branch.proposals) - 1 for branch in branches._branches.values()]
    assert {1, 2} <= set(gained)


@cache
def one_draft(*, with_features):
    return draft_model(with_features=with_features)


def foretold(of, schedule):
    model = one_draft(with_features=schedule.exit_features)
    drafter = of(model)
    features = made_up_features(30)[: len(PROMPT) - 1] if schedule.exit_features else None
    drafter.prefill(PROMPT, schedule=schedule, capacity=40, features_TE=features)
    run(drafter.rollout())
    return BranchSet(drafter, schedule)


FROM_DRAFT = {"root_source": "draft", "draft_top_k": 2}
FROM_EXIT = {"root_source": "exit", "exit_layer": 2, "exit_top_k": 2}


@pytest.mark.parametrize("num_streams", [1, 2, 3])
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 6, 7])
def test_the_steps_of_branches_lie_between_the_fewest_there_are_and_one_for_each_token(num_tokens, num_streams):
    schedule = mirror(num_tokens, draft_streams=num_streams, **FROM_DRAFT)
    roots, guesses = 2 * (num_tokens + 1), min(num_streams, max(0, num_tokens - 2))
    fewest = 1 + ceil((num_tokens - 1) / (1 + num_streams))
    # after the row that reads the last drafted token: the roots, then all branches with their guesses
    assert steps_of(foretold(Foretelling, schedule)) == [1, roots, *[roots * (1 + guesses)] * (fewest - 1)]
    assert steps_of(foretold(Misled, schedule)) == [1, roots, *[roots * (1 + guesses)] * (num_tokens - 1)]


def test_branches_of_the_exit_start_without_guesses_and_go_on_with_them():
    branches = foretold(Foretelling, mirror(5, draft_streams=3, **FROM_EXIT))
    assert steps_of(branches) == [1]
    branches.join(made_up_signal(6, 0, None))
    assert steps_of(branches) == [12, 48]


def test_branches_with_features_start_with_the_window_and_go_on_with_guesses():
    branches = foretold(Misled, mirror(3, draft_streams=2, exit_features=True, **FROM_EXIT))
    branches.join(made_up_signal(4, 0, made_up_features(4)))
    assert steps_of(branches) == [3 + 8, 16, 16]


@pytest.mark.parametrize(
    ("steps_before", "rows"),
    [
        (1, [10, 30, 30, 30]),  # all start together, without guesses
        (2, [30, 30, 30, 15]),  # those of the exit start in a step that verifies guesses of the draft's
        (5, [5, 15, 15, 15]),  # those of the draft are finished
    ],
)
def test_hybrid_branches_of_the_exit_join_those_under_way(steps_before, rows):
    schedule = mirror(4, root_source="hybrid", exit_layer=2, exit_top_k=1, draft_top_k=1, draft_streams=2)
    branches = foretold(Misled, schedule)
    assert [branches.step() for _ in range(steps_before)] == [1, 5, 15, 15, 15][:steps_before]
    # candidates that the draft cannot have named: it keeps even ids only
    branches.join(ExitSignal(((1, 3),) * 5))
    assert steps_of(branches) == rows


def test_one_step_takes_branches_further_by_different_numbers_of_tokens():
    class RightInOne(Foretelling):
        def guess_in_branches(self, branches, entering_RD, positions_RJ):
            found = super().guess_in_branches(branches, entering_RD, positions_RJ)
            return [own if branch == 1 else [1] * len(own) for branch, own in enumerate(found)]

    branches = foretold(RightInOne, mirror(5, root_source="draft", draft_top_k=1, draft_streams=2))
    for _ in range(3):
        branches.step()
    assert [len(branch.proposals) for branch in branches._branches.values()] == [2, 4, 2, 2, 2, 2]
    assert branches.take(list(branches._branches)[1])[0]


def test_what_is_left_of_a_branch_is_drafted_from_the_guesses_of_its_last_step():
    branches = foretold(Foretelling, mirror(6, root_source="draft", draft_top_k=1, draft_streams=2))
    branches.step(), branches.step()
    rows, _ = run(branches.take(next(iter(branches._branches)))[1])
    assert rows == [3, 2], "not one row first"


def test_rows_beside_the_first_one_of_a_branch_are_no_guesses_even_if_they_look_right(monkeypatch):
    schedule = mirror(4, root_source="hybrid", exit_layer=2, exit_top_k=1, draft_top_k=1, draft_streams=2)
    branches = foretold(Misled, schedule)
    branches.step(), branches.step()
    branches.join(ExitSignal(((1, 3),) * 5))
    monkeypatch.setattr(branch_set, "num_verified", lambda ids, _: len(ids))
    branches.step()
    assert [len(branch.proposals) for branch in branches._branches.values()] == [4] * 5 + [1] * 5


def test_streams_go_on_from_the_last_row_that_a_branch_keeps():
    branches = foretold(Foretelling, mirror(6, root_source="draft", draft_top_k=1, draft_streams=2))
    drafter = branches._drafter
    for _ in range(3):
        branches.step()
    for branch in branches._branches.values():
        assert len(branch.proposals) == 4
        fed = [branch.root.token, *(proposal.token for proposal in branch.proposals[:-1])]
        text = torch.tensor([[*PROMPT, *drafter.window.tokens[: branch.root.row], *fed]])
        places = torch.arange(text.shape[1])
        states = drafter.model.run(text, positions=places, mask=causal_mask(text.shape[1], torch.float32))
        torch.testing.assert_close(branch.entering_1D[0], states.entering_TD[0, -1])
