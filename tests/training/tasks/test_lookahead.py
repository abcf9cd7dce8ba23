"""Rows are collected position by position."""

import torch

from training.tasks.lookahead import AgreementCount, predicting_positions, states_before


def test_the_positions_are_those_that_predict_an_answer_token_and_have_enough_before_them(states) -> None:
    for index, row in enumerate(states.conversations):
        expected = [
            position for position in range(len(row.ids) - 1) if position + 1 >= len(row.prompt) and position >= 3
        ]
        assert list(predicting_positions(states, index, 3)) == expected


def test_states_come_from_0_1_2_positions_before_conversation_by_conversation(states) -> None:
    batch = [4, 0, 9]
    parts = states_before(states, batch, 2)
    for shift, part in enumerate(parts):
        expected = [
            states.rows(4, index)[position - shift]
            for index in batch
            for position in predicting_positions(states, index, 2)
        ]
        assert torch.equal(part, torch.stack(expected))
    assert len(parts) == 3


def test_agreement_is_counted_over_all_batches() -> None:
    scores = 9.0 - torch.arange(9.0)
    best_is_0, best_is_1 = scores, scores[[1, 0, *range(2, 9)]]
    count = AgreementCount(2)
    count.add([torch.stack([best_is_0, best_is_1]), torch.stack([best_is_1, best_is_1])], torch.tensor([0, 1]))
    count.add([torch.stack([best_is_0]), torch.stack([best_is_0])], torch.tensor([4]))
    shares = count.shares
    assert [shares[f"agreement_head1_top{top_k}"] for top_k in (1, 3, 8)] == [2 / 3, 2 / 3, 1]
    assert [shares[f"agreement_head2_top{top_k}"] for top_k in (1, 3, 8)] == [1 / 3, 2 / 3, 1]
