"""What layers keep of a sequence and read of it: windows, latent and linear attention, on one device and on several."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwprofiles.model_shape import model_shape
from hwprofiles.models.layer_kinds import Mixer


def test_a_state_of_linear_attention_is_as_large_as_an_engine_prints():
    """SGLang 0.5 prints 146.81 MB for a request of Qwen3.8-27B: 48 x (10240 x 3 x 2 + 48 x 128 x 128 x 4) bytes."""
    shape = model_shape("qwen3.8-27b")
    assert shape.kv_bytes(0) == 153_944_064
    assert shape.kv_bytes(1) - shape.kv_bytes(0) == 16 * 2 * 4 * 256 * 2


def test_every_row_of_a_window_writes_a_state_and_a_prompt_writes_one():
    shape = model_shape("qwen3.8-27b")
    cached = 16 * 2 * 4 * 256 * 2
    one, four, prompt = (
        shape.num_layers * shape.layer_kv_bytes(rows, 0, is_prompt=is_prompt)
        for rows, is_prompt in ((1, False), (4, False), (4, True))
    )
    assert one == 2 * 153_944_064 + cached
    assert four == 5 * 153_944_064 + 4 * cached
    assert prompt == 2 * 153_944_064 + 4 * cached


def test_a_sliding_layer_keeps_and_reads_its_window_only():
    shape = model_shape("gemma-4-31b")
    sliding, full = 50 * 2 * 16 * 256 * 2, 10 * 4 * 512 * 2
    assert shape.kv_bytes(131072) == 1024 * sliding + 131072 * full
    assert shape.layer_kv_bytes(1, 131072) * 60 == 1025 * sliding + 131073 * full
    assert shape.layer_flops(1, 131072) - shape.layer_flops(1, 131071) == pytest.approx(10 / 60 * 4 * 32 * 512)


SIZES = st.integers(1, 200)


@given(SIZES, st.integers(0, 200), SIZES | st.none(), SIZES | st.none())
def test_a_new_token_reads_those_before_it_and_itself_up_to_a_limit(rows, context, window, read_tokens):
    mixer = Mixer(num_layers=1, parameters=0, window=window, read_tokens=read_tokens, flops_per_key=1)
    limit = min(window or inf, read_tokens or inf)
    keys = sum(min(context + i, limit) for i in range(1, rows + 1))
    assert mixer.flops(rows, context) == pytest.approx(keys)
    assert mixer.flops(rows, np.array([0.0, context]))[1] == mixer.flops(rows, context)


def test_latent_attention_keeps_one_vector_a_token():
    assert model_shape("deepseek-v3").kv_bytes(1000) == 61 * 1000 * (512 + 64) * 2
    for name in ("glm-5.2", "deepseek-ai/DeepSeek-V3.2-Exp"):
        assert model_shape(name).layer_kv_bytes(1, 100_000) < model_shape("kimi-k2").layer_kv_bytes(1, 100_000) / 5


@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v4-flash"])
def test_keys_of_an_indexer_have_eight_bits_whatever_the_cache_has(name):
    shape, far = model_shape(name), 1 << 20
    indexed = 61 * 128 if name == "deepseek-v3.2" else 21 * 128 / 4
    grown = [shape.kv_bytes(far + 1024, bits) - shape.kv_bytes(far, bits) for bits in (16, 8)]
    assert 2 * grown[1] - grown[0] == pytest.approx(1024 * indexed)
    read = [shape.layer_kv_bytes(1, float(far), bits) - shape.layer_kv_bytes(1, far / 2, bits) for bits in (16, 8)]
    assert 2 * read[1] - read[0] == pytest.approx(far / 2 * indexed / shape.num_layers)


@pytest.mark.parametrize(
    ("name", "num_devices", "num_shares"),
    [
        ("deepseek-v3", 8, 1),
        ("glm-5.2", 2, 1),
        ("deepseek-v4-flash", 4, 1),
        ("qwen3-235b-a22b", 8, 4),
        ("qwen3-235b-a22b", 2, 2),
        ("qwen2.5-0.5b", 4, 2),
        ("llama-3.1-70b", 8, 8),
        ("llama-3.1-70b", 3, 8 / 3),  # of 8 heads two devices hold three
    ],
)
def test_devices_share_out_heads_of_a_cache_and_more_of_them_hold_copies(name, num_devices, num_shares):
    shape = model_shape(name)
    assert shape.kv_bytes(1000, 16, num_devices) == shape.kv_bytes(1000) / num_shares
    assert shape.layer_kv_bytes(4, 1000.0, 8, num_devices) == shape.layer_kv_bytes(4, 1000.0, 8) / num_shares


def test_states_of_linear_attention_and_windows_are_shared_out_by_heads_of_their_own():
    shape, states = model_shape("qwen3.8-27b"), 153_944_064
    assert shape.kv_bytes(1000, 16, 8) == states / 8 + 1000 * 16 * 2 * 4 * 256 * 2 / 4
    sliding, full = 50 * 2 * 16 * 256 * 2, 10 * 4 * 512 * 2
    assert model_shape("gemma-4-31b").kv_bytes(1000, 16, 8) == 1000 * (sliding / 8 + full / 4)
