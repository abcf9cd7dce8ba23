"""Branches of a draft with streams hold what it drafts one token at a time, in fewer steps."""

from __future__ import annotations

from math import ceil

import pytest
import torch

from decoding.messages import ExitSignal
from runtime.drafters.language_model import branch_set
from runtime.drafters.language_model.branch_set import BranchSet
from runtime.models.decoder import causal_mask
from tests.runtime.drafters.language_model.test_draft_streams import Foreseeing, Misled, draft_model, fed_to, start
from tests.runtime.drafters.language_model.test_drafter import (
    PROMPT,
    begin,
    made_up_features,
    made_up_signal,
    mirror,
    run,
    steps_of,
)


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


def foretold(of, schedule):
    drafter = of(draft_model(with_features=schedule.exit_features))
    features = made_up_features(30)[: len(PROMPT) - 1] if schedule.exit_features else None
    start(drafter, schedule, features_TE=features)
    run(drafter.rollout())
    drafter.branch_set = BranchSet(drafter, schedule)
    return drafter.branch_set


FROM_DRAFT = {"root_source": "draft", "draft_top_k": 2}
FROM_EXIT = {"root_source": "exit", "exit_layer": 2, "exit_top_k": 2}


@pytest.mark.parametrize("num_streams", [1, 2, 3])
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 6, 7])
def test_the_steps_of_branches_lie_between_the_fewest_there_are_and_one_for_each_token(num_tokens, num_streams):
    schedule = mirror(num_tokens, draft_streams=num_streams, **FROM_DRAFT)
    roots, guesses = 2 * (num_tokens + 1), min(num_streams, max(0, num_tokens - 2))
    fewest = 1 + ceil((num_tokens - 1) / (1 + num_streams))
    # after the row that reads the last drafted token: the roots, then all branches with their guesses
    assert steps_of(foretold(Foreseeing, schedule)) == [1, roots, *[roots * (1 + guesses)] * (fewest - 1)]
    assert steps_of(foretold(Misled, schedule)) == [1, roots, *[roots * (1 + guesses)] * (num_tokens - 1)]


def test_branches_of_the_exit_start_without_guesses_and_go_on_with_them():
    branches = foretold(Foreseeing, mirror(5, draft_streams=3, **FROM_EXIT))
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
    class RightInOne(Foreseeing):
        def guess_in_branches(self, *args):
            found = super().guess_in_branches(*args)
            return [own if branch == 1 else [1] * len(own) for branch, own in enumerate(found)]

    branches = foretold(RightInOne, mirror(5, root_source="draft", draft_top_k=1, draft_streams=2))
    for _ in range(3):
        branches.step()
    assert [len(branch.proposals) for branch in branches._branches.values()] == [2, 4, 2, 2, 2, 2]
    assert branches.take(list(branches._branches)[1])[0]


def test_what_is_left_of_a_branch_is_drafted_from_the_guesses_of_its_last_step():
    branches = foretold(Foreseeing, mirror(6, root_source="draft", draft_top_k=1, draft_streams=2))
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
    branches = foretold(Foreseeing, mirror(6, root_source="draft", draft_top_k=1, draft_streams=2))
    drafter = branches._drafter
    for _ in range(3):
        branches.step()
    for branch in branches._branches.values():
        assert len(branch.proposals) == 4
        text = torch.tensor([fed_to(branch, drafter)])
        places = torch.arange(text.shape[1])
        states = drafter.model.run(text, positions=places, mask=causal_mask(text.shape[1], torch.float32))
        torch.testing.assert_close(branch.entering_1D[0], states.entering_TD[0, -1])
