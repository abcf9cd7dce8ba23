"""The reference goes row by row and head by head, without masks, caches or batches."""

import pytest
import torch

from runtime.models.decoder import causal_mask
from tests.tiny_eagle import plain_entered, plain_features, plain_log_probs, tiny_eagle1, tiny_eagle3
from tests.tiny_models import tiny_target

IDS = [5, 9, 2, 40, 33, 7]


@pytest.fixture(params=["eagle1", "eagle3"])
def head(request):
    return {"eagle1": tiny_eagle1, "eagle3": tiny_eagle3}[request.param](tiny_target())


@pytest.fixture
def features(head):
    width = head.fuse.in_features if head.fuse.in_features == 48 else 16
    return torch.randn(len(IDS), width, generator=torch.Generator().manual_seed(0))


def test_every_row_goes_on_from_its_token_and_the_feature_before(head, features):
    entered = head.input_feature(features)
    assert torch.allclose(entered, plain_entered(head, features), atol=1e-6)
    found = head(
        torch.tensor([IDS]), entered[None], positions=torch.arange(1, 7), mask=causal_mask(6, torch.float32), cache=None
    )[0]
    expected = plain_features(head, IDS, entered)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    for row, feature in zip(found, expected, strict=True):
        log_probs = head.lm_head(head.output_state(row)).log_softmax(-1)
        assert torch.allclose(log_probs, plain_log_probs(head, feature), rtol=1e-4, atol=1e-4)


def test_the_feature_of_eagle1_is_what_the_targets_output_head_reads():
    target = tiny_target()
    head = tiny_eagle1(target)
    state = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    unit = state / (state.square().mean(-1, keepdim=True) + target.config.norm_eps).sqrt()
    assert torch.allclose(head.output_state(head.input_feature(unit)), target.normalise(state), atol=1e-5)
