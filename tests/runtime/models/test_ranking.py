import pytest
import torch

from runtime.models.ranking import ranked_ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ids_are_ranked_by_logit_and_then_by_id(dtype) -> None:
    logits = torch.randn(20, 40, generator=torch.Generator().manual_seed(0)).mul(3).round().div(2).to(dtype)
    for row, found in zip(logits.tolist(), ranked_ids(logits, 7).tolist(), strict=True):
        assert found == sorted(range(40), key=lambda token: (-row[token], token))[:7]


def test_the_first_is_the_argmax_and_zero_has_no_sign() -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, -0.0], [-5.0, -3.0, -3.0, -4.0]])
    assert ranked_ids(logits, 2).tolist() == [[1, 2], [1, 2]]
    assert ranked_ids(logits, 1).flatten().tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("levels", [2, 30, 100_000])
def test_a_short_look_and_a_whole_ranking_agree(dtype, levels) -> None:
    """Two levels of logits leave no end to the equals, many levels hardly have any."""
    generator = torch.Generator().manual_seed(levels)
    logits = torch.randint(-levels, levels, (6, 700), generator=generator).div(levels).to(dtype)
    logits[:, ::50] = -0.0
    for row, found in zip(logits.tolist(), ranked_ids(logits, 5).tolist(), strict=True):
        assert found == sorted(range(700), key=lambda token: (-row[token], token))[:5]
