import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError, ModelError
from hwprofiles.model_shape import model_shape, shape_from_hf, shipped_models

PUBLISHED_PARAMETERS = {
    "qwen2.5-0.5b": 0.494e9,
    "qwen2.5-3b": 3.086e9,
    "qwen3-0.6b": 0.596e9,
    "qwen3-1.7b": 1.72e9,
    "qwen3-4b": 4.02e9,
    "qwen3-8b": 8.19e9,
    "qwen3-14b": 14.77e9,
    "qwen3-32b": 32.76e9,
    "qwen3-30b-a3b": 30.53e9,
    "mistral-small-24b": 23.57e9,
    "llama-3.1-8b": 8.03e9,
    "llama-3.1-70b": 70.55e9,
    "llama-3.2-1b": 1.236e9,
    "llama-3.2-3b": 3.213e9,
    "smollm2-135m": 134.5e6,
    "smollm2-360m": 361.8e6,
    "smollm2-1.7b": 1.711e9,
    "opt-125m": 125.2e6,
    "opt-66b": 65.72e9,
    "mirror-track-0.6b": 0.6e9,
}
"""Counts of the safetensors files, as their model pages show them; of the paper's draft only `0.6B` is published."""


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_shape_has_as_many_parameters_as_the_model(name):
    assert model_shape(name).num_parameters == pytest.approx(PUBLISHED_PARAMETERS[name], rel=0.007, abs=5e5)


def test_a_layer_by_hand():
    shape = model_shape("qwen3-14b")
    attention = 2 * 5120 * 40 * 128 + 2 * 5120 * 8 * 128
    assert shape.attention_parameters == attention
    assert shape.layer_parameters == attention + 3 * 5120 * 17408
    assert shape.layer_weight_bytes("bf16") == 2 * shape.layer_parameters
    assert shape.kv_bytes_per_token() == 40 * 2 * 8 * 128 * 2
    assert shape.layer_flops(1, 100) == 2 * shape.layer_parameters + 4 * 40 * 128 * 101
    assert shape.head_flops(3) == 6 * 151936 * 5120


def test_four_bit_weights_keep_eight_in_embeddings_and_head():
    shape = model_shape("llama-3.1-8b")
    layers = shape.num_layers * shape.layer_parameters
    assert shape.weight_bytes("int4") == pytest.approx(layers * 0.53125 + 2 * 128256 * 4096 * (1 + 1 / 64))
    assert shape.head_bytes("int4") == shape.head_bytes("int8") < shape.head_bytes("bf16")


def test_a_reduced_vocabulary_costs_its_share_of_the_head():
    shape = model_shape("smollm2-135m")
    kept = shape.model_copy(update={"kept_vocabulary": 8192})
    assert kept.head_bytes("bf16") == shape.head_bytes("bf16") / 6
    assert kept.head_flops(2) == shape.head_flops(2) / 6


def test_one_token_of_a_mixture_touches_its_own_experts_and_many_touch_all():
    shape = model_shape("qwen3-30b-a3b")
    assert shape.experts_touched(1) == pytest.approx(8)
    assert shape.experts_touched(2) == pytest.approx(8 + 8 * (1 - 8 / 128))
    assert shape.experts_touched(1000) == pytest.approx(128)
    dense_part = shape.attention_parameters + 2048 * 128
    assert shape.layer_weight_bytes("bf16", 1) == pytest.approx(2 * (dense_part + 8 * 3 * 2048 * 768))


@given(st.sampled_from(shipped_models()), st.integers(1, 128), st.integers(1, 128), st.integers(0, 4096))
def test_more_rows_never_cost_less(name, rows, more, context):
    shape = model_shape(name)
    assert shape.layer_weight_bytes("int8", rows) <= shape.layer_weight_bytes("int8", rows + more)
    assert shape.layer_flops(rows, context) < shape.layer_flops(rows + more, context)
    assert shape.layer_weight_bytes("bf16", rows) <= 2 * shape.layer_parameters * (1 + 1e-12)


HF = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "model_type": "llama",
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
}


def test_a_hugging_face_config_gives_the_shipped_shape(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HF, indent=2))
    shape, shipped = model_shape(tmp_path), model_shape("llama-3.1-8b")
    assert shape.model_dump(exclude={"name", "source"}) == shipped.model_dump(exclude={"name", "source"})
    assert model_shape(str(tmp_path / "config.json")) == shape


def test_an_opt_config_has_two_matrices_and_a_table_of_positions():
    opt = {
        "hidden_size": 768,
        "ffn_dim": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": 768,
    }
    assert shape_from_hf(opt).num_parameters == model_shape("opt-125m").num_parameters


def test_a_mixture_is_read_with_its_experts():
    mixture = HF | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    shape = shape_from_hf(mixture)
    assert (shape.num_experts, shape.experts_per_token, shape.intermediate_size) == (128, 8, 768)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank is 512"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types is"),
        ({"word_embed_proj_dim": 512}, "word_embed_proj_dim is 512"),
        ({"num_hidden_layers": None}, "num_layers: .*found None"),
        ({"hidden_size": "64"}, "config.json: hidden_size: .*valid integer, found '64'"),
        ({"num_attention_heads": [8]}, "num_attention_heads: .*valid integer"),
        ({"text_config": [1]}, r"text_config: expected an object, found \[1\]"),
        ({"layer_types": 5}, "layer_types: .*valid list, found 5"),
        ({"ffn_dim": 64, "max_position_embeddings": "9"}, "max_position_embeddings: .*valid integer, found '9'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: .*valid boolean, found 'no'"),
        ({"vocab_size": 1 << 63}, "vocab_size: .*less than or equal to"),
        ({"num_key_value_heads": 5}, "num_heads 32 is not a multiple of num_kv_heads 5"),
    ],
)
def test_what_a_shape_cannot_describe_is_refused(change, message):
    with pytest.raises(ModelError, match=message):
        shape_from_hf(HF | change)


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"'gpt-5'; there are llama-3\.1-70b, .*config\.json"):
        model_shape("gpt-5")


def test_a_name_that_is_too_long_for_a_file_is_said_to_be():
    with pytest.raises(ConfigError, match="cannot be a path"):
        model_shape("x" * 300)


def test_a_wrong_shape_file_names_the_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nnum_layers: many\n")
    with pytest.raises(ConfigError, match="mine.yaml:2"):
        model_shape(path)
