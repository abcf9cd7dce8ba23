import torch

from training.judging.drafter_acceptance import AgreementCount


def test_agreement_is_counted_over_all_batches() -> None:
    scores = 9.0 - torch.arange(9.0)
    best_is_0, best_is_1 = scores, scores[[1, 0, *range(2, 9)]]
    count = AgreementCount()
    count.add(1, torch.stack([best_is_0, best_is_1]), torch.tensor([0, 1]))
    count.add(2, torch.stack([best_is_1, best_is_1]), torch.tensor([0, 1]))
    for head in (1, 2):
        count.add(head, torch.stack([best_is_0]), torch.tensor([4]))
    figures = count.figures("agreement_head")
    assert [figures[f"agreement_head1_top{top_k}"] for top_k in (1, 3, 8)] == [2 / 3, 2 / 3, 1]
    assert [figures[f"agreement_head2_top{top_k}"] for top_k in (1, 3, 8)] == [1 / 3, 2 / 3, 1]
    assert count.shares == {1: {1: 2 / 3, 3: 2 / 3, 8: 1}, 2: {1: 1 / 3, 3: 2 / 3, 8: 1}}
