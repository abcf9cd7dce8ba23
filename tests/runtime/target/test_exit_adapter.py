import torch
from torch import nn

from runtime.target.exit_adapter import ExitAdapter


def test_an_untrained_adapter_changes_nothing():
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ExitAdapter(16, 8, 1e-5)(x), x)


def test_an_adapter_adds_a_residual_mlp_to_an_affine_map():
    torch.manual_seed(0)
    adapter = ExitAdapter(4, 3, 1e-5).requires_grad_(requires_grad=False)
    for parameter in adapter.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(4)
    y = adapter.affine.weight @ x + adapter.affine.bias
    unit = y / (y.square().mean() + 1e-5).sqrt() * adapter.norm
    inner = adapter.up.weight @ unit
    expected = y + adapter.down.weight @ (inner * inner.sigmoid())
    assert torch.allclose(adapter(x), expected, atol=1e-5)
