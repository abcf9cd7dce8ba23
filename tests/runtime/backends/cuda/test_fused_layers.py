"""Layers of few kernels compute what the decoder's own layers do; the kernels need a GPU, or Triton's interpreter."""

import pytest
import torch
from torch.nn import functional as F

from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.models.decoder import gated_silu
from tests.runtime.reading import read
from tests.tiny_models import tiny_target

pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
from runtime.backends.cuda.fused_layers import FusedLayer, activate, add_and_normalise, fuse

pytestmark = pytest.mark.gpu
GPU = "cuda:0"
SHAPES = {
    "a Llama": {},
    "norms of queries and keys": {"qk_norm": True, "num_heads": 6, "num_kv_heads": 2, "head_dim": 24},
    "biases": {"architecture": "Qwen2ForCausalLM", "attention_bias": True},
}


def fused_and_own(decoder, ids):
    """Logits of a text read in one call, in pieces, and one by one: by few kernels, and by the decoder's own layers."""
    own = read(CudaBackend(decoder, device="cpu"), [len(ids)], ids=ids)
    decoder = decoder.to(GPU)
    fuse(decoder)
    assert all(isinstance(layer, FusedLayer) for layer in decoder.layers)
    backend = CudaBackend(decoder, device=GPU)
    return own, [read(backend, chunks, ids=ids).cpu() for chunks in ([len(ids)], [7, 1, 30, len(ids)], [1] * len(ids))]


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_in_float32_are_those_of_the_decoders_own_layers(shape):
    torch.backends.cuda.matmul.allow_tf32 = False
    decoder = tiny_target(**SHAPES[shape], max_position=400)
    for name, weight in decoder.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 2.0)
    own, found = fused_and_own(decoder, torch.arange(120) % 50)
    for one in found:
        torch.testing.assert_close(one, own, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_next_to_any_others_and_differs_by_rounding_alone_from_torchs(dtype):
    generator = torch.Generator(GPU).manual_seed(1)
    x, added = (torch.randn(64, 1152, device=GPU, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(1152, device=GPU, generator=generator).to(dtype)
    total, unit = add_and_normalise(x, added, weight, 1e-5)
    alone = add_and_normalise(x[5:6], added[5:6], weight, 1e-5)
    assert torch.equal(total, x + added)
    assert torch.equal(alone[0], total[5:6])
    assert torch.equal(alone[1], unit[5:6])
    assert torch.equal(activate(x)[5:6], activate(x[5:6]))
    limit = dict.fromkeys(("rtol", "atol"), 4 * torch.finfo(dtype).eps)
    torch.testing.assert_close(unit, F.rms_norm((x + added).float(), (1152,), weight.float(), 1e-5).to(dtype), **limit)
    torch.testing.assert_close(activate(x), gated_silu(x.float()).to(dtype), **limit)
