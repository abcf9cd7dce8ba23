import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError, ModelError
from hwprofiles.model_shape import model_shape, shape_from_hf, shipped_models

BILLIONS = """
amd-llama-135m 0.1341, apertus-70b 70.6, apertus-8b 8.05, apriel-1.5-15b 14.43, aya-expanse-32b 32.3,
baichuan2-13b 13.9, baichuan2-7b 7.506, bloom-560m 0.5592, bloom-7b1 7.069, chatglm3-6b 6.244, codellama-34b 33.74,
codestral-22b 22.25, command-a-111b 111.06, command-r-35b 34.98, command-r-plus 103.81, dbrx-132b 131.6,
deepseek-coder-1.3b 1.346, deepseek-coder-33b 33.34, deepseek-coder-6.7b 6.74, deepseek-llm-67b 67.42,
deepseek-llm-7b 6.91, deepseek-moe-16b 16.38, deepseek-r1-distill-qwen-1.5b 1.777, deepseek-v2 235.74,
deepseek-v2-lite 15.71, deepseek-v3 671.03, deepseek-v3.2 671.9, deepseek-v4-flash 284, dots.llm1 142.8,
ernie-4.5-21b-a3b 21.83, ernie-4.5-300b-a47b 299.5, exaone-3.5-2.4b 2.405, exaone-3.5-7.8b 7.818, exaone-4.0-1.2b 1.279,
exaone-4.0-32b 32, falcon-40b 41.3, falcon-7b 6.92, gemma-2-27b 27.23, gemma-2-2b 2.614, gemma-2-9b 9.242,
gemma-2b 2.51, gemma-3-12b 11.77, gemma-3-1b 1, gemma-3-270m 0.268, gemma-3-27b 27.01, gemma-3-4b 3.88,
gemma-4-12b 11.95, gemma-4-26b-a4b 25.23, gemma-4-31b 30.7, gemma-4-e2b 2.28, gemma-4-e4b 4.64, gemma-7b 8.538,
glm-4-32b 32.57, glm-4-9b 9.4, glm-4.5-air 106.85, glm-4.6 352.8, glm-4.7-flash 29.94, glm-5.2 744, glm-5.3-flash 313.2,
gpt-j-6b 6.05, gpt-neox-20b 20.55, gpt-oss-120b 116.83, gpt-oss-20b 20.91, gpt2 0.1244, gpt2-large 0.774,
gpt2-medium 0.3548, gpt2-xl 1.5576, granite-20b-code 20.07, granite-3.3-2b 2.534, granite-3.3-8b 8.171,
hunyuan-a13b 80.39, internlm2-20b 19.861, internlm2-7b 7.738, internlm3-8b 8.8, kimi-k2 1026, kimi-k3 2780,
ling-1t 999.7, ling-flash-2.0 102.89, ling-mini-2.0 16.26, llama-160m 0.1624, llama-2-13b 13.016, llama-2-70b 68.98,
llama-2-7b 6.738, llama-3.1-405b 405.85, llama-3.1-70b 70.55, llama-3.1-8b 8.03, llama-3.2-1b 1.236, llama-3.2-3b 3.213,
llama-30b 32.53, llama-4-maverick 400.71, llama-4-scout 107.77, llama-65b 65.29, llama-68m 0.068, mimo-7b 7.62,
mimo-v2-flash 309, minicpm-2b 2.725, minicpm3-4b 4.07, minicpm4-0.5b 0.434, minicpm4-8b 8.19, minimax-m2 228.69,
minimax-m3 428, ministral-3-14b 13.5, ministral-3-3b 3.43, ministral-3-8b 8.49, ministral-8b 8.02,
mirror-track-0.6b 0.6, mistral-7b 7.248, mistral-large-123b 122.61, mistral-nemo-12b 12.25, mistral-small-24b 23.57,
mixtral-8x22b 140.63, mixtral-8x7b 46.7, mpt-30b 29.96, mpt-7b 6.649, olmo-2-13b 13.72, olmo-2-1b 1.485,
olmo-2-7b 7.299, olmo-3-32b 32.23, olmoe-1b-7b 6.92, openllama-13b 13.016, openllama-3b 3.427, openllama-7b 6.738,
opt-1.3b 1.316, opt-125m 0.1252, opt-13b 12.85, opt-2.7b 2.652, opt-30b 29.97, opt-6.7b 6.66, opt-66b 65.72, phi-2 2.78,
phi-3-medium 13.96, phi-3-mini 3.821, phi-3.5-moe 41.87, phi-4 14.66, phi-4-mini 3.836, pythia-1.4b 1.4146,
pythia-12b 11.846, pythia-160m 0.1623, pythia-2.8b 2.775, pythia-410m 0.4053, pythia-6.9b 6.857, qwen1.5-0.5b 0.464,
qwen1.5-1.8b 1.837, qwen1.5-14b 14.17, qwen1.5-32b 32.51, qwen1.5-72b 72.29, qwen1.5-7b 7.72, qwen1.5-moe-a2.7b 14.32,
qwen2-57b-a14b 57.41, qwen2.5-0.5b 0.494, qwen2.5-1.5b 1.544, qwen2.5-14b 14.77, qwen2.5-32b 32.76, qwen2.5-3b 3.086,
qwen2.5-72b 72.71, qwen2.5-7b 7.616, qwen3-0.6b 0.596, qwen3-1.7b 1.72, qwen3-14b 14.77, qwen3-235b-a22b 235.09,
qwen3-30b-a3b 30.53, qwen3-32b 32.76, qwen3-4b 4.02, qwen3-8b 8.19, qwen3-coder-480b-a35b 480.15,
qwen3-next-80b-a3b 79.67, qwen3.5-0.8b 0.752, qwen3.5-122b-a10b 122.11, qwen3.5-27b 26.9, qwen3.5-2b 1.88,
qwen3.5-35b-a3b 34.66, qwen3.5-397b-a17b 396.35, qwen3.5-4b 4.21, qwen3.5-9b 8.95, qwen3.6-27b 26.9,
qwen3.6-35b-a3b 34.66, qwen3.8-27b 26.9, qwen3.8-flash-next 125, seed-oss-36b 36.15, sheared-llama-1.3b 1.345,
sheared-llama-2.7b 2.702, smollm2-1.7b 1.711, smollm2-135m 0.1345, smollm2-360m 0.3618, smollm3-3b 3.075,
solar-10.7b 10.73, starcoder-15b 15.52, step-3.5-flash 196, tinyllama-1.1b 1.1, yi-1.5-9b 8.829, yi-34b 34.39,
yi-6b 6.061,
"""
"""Billions by the safetensors or GGUF files, as model pages and llama.cpp show them, without heads that draft and what
sees or hears, and without tables of which a token reads some rows: Gemma 4 E2B and E4B are called 2.3B and 4.5B
without them, Qwen3.8-Flash-Next 125B. Of the paper's draft only `0.6B` is published, of Kimi-K3 2.8T. DeepSeek-V3.2 has
V3's and an indexer in every layer."""
PARAMETERS = dict(item.split() for item in BILLIONS.replace("\n", " ").strip().rstrip(",").split(", "))


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_shape_has_as_many_parameters_as_the_model(name):
    assert model_shape(name).num_parameters == pytest.approx(float(PARAMETERS[name]) * 1e9, rel=0.007, abs=5e5)


def test_a_layer_by_hand():
    shape = model_shape("qwen3-14b")
    attention = 2 * 5120 * 40 * 128 + 2 * 5120 * 8 * 128
    assert shape.attention_parameters == attention
    assert shape.layer_parameters == attention + 3 * 5120 * 17408
    assert shape.layer_weight_bytes("bf16") == 2 * shape.layer_parameters
    assert shape.kv_bytes(1) - shape.kv_bytes(0) == 40 * 2 * 8 * 128 * 2
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
    sizes = {"hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    opt = sizes | {"vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 768}
    assert shape_from_hf(opt).num_parameters == model_shape("opt-125m").num_parameters


def test_a_kind_without_gates_has_two_matrices():
    sizes = {"hidden_size": 4608, "intermediate_size": 18432, "num_attention_heads": 36, "num_key_value_heads": 4}
    starcoder = HF | sizes | {"model_type": "starcoder2", "vocab_size": 49152, "tie_word_embeddings": None}
    assert shape_from_hf(starcoder).num_parameters == pytest.approx(7.17e9, rel=0.007)


WIDTHS = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": 512}, "latent.rope_dim: .*found None"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types is"),
        ({"layer_types": ["chunked_attention"] * 32}, "layer_types is"),
        ({"layer_types": ["linear_attention"] * 32}, "linear.num_key_heads: .*found None"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding.window: .*found None"),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers is 20"),
        ({"compress_ratios": [0, 4]}, r"compress_ratios is \[0, 4\]"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 40}, "dense_layers is 40 of 32"),
        ({"hybrid_override_pattern": "M-*-"}, "hybrid_override_pattern is 'M-"),
        ({"moe_num_experts": 64, "moe_k": 6}, "moe_num_experts is 64"),
        ({"num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}, "interleave_moe_layer"),
        ({"num_shared_experts": 1}, "num_shared_experts is 1"),
        ({"word_embed_proj_dim": 512}, "word_embed_proj_dim is 512"),
        ({"num_hidden_layers": None}, "num_layers: .*found None"),
        ({"num_attention_heads": [8]}, "num_attention_heads: .*valid integer"),
        ({"text_config": [1]}, r"text_config: expected an object, found \[1\]"),
        ({"layer_types": 5}, "layer_types: .*valid list, found 5"),
        ({"ffn_dim": 64, "max_position_embeddings": "9"}, "max_position_embeddings: .*valid integer, found '9'"),
        ({"vocab_size": 1 << 63}, "vocab_size: .*less than or equal to"),
        (WIDTHS | {"kv_lora_rank": 512, "indexer_types": ["full"] * 33}, "num_index_layers is 33 of 32 layers"),
        ({"num_key_value_heads": 5}, "num_heads 32 is not a multiple of num_kv_heads 5"),
    ],
)
def test_what_a_shape_cannot_describe_is_refused(change, message):
    with pytest.raises(ModelError, match=message):
        shape_from_hf(HF | change)


def test_what_kinds_leave_unsaid_is_known():
    shape = shape_from_hf(HF | {"model_type": "cohere2", "sliding_window": 4096, "tie_word_embeddings": None})
    assert shape.tie_embeddings
    assert shape.sliding.num_layers == 24
    assert shape_from_hf(HF | {"model_type": "gemma2", "sliding_window": 4096}).sliding.num_layers == 16
    experts = {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "num_shared_experts": 1}
    assert shape_from_hf(HF | experts).shared_intermediate_size == 512


HYBRID = HF | {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "mtp_num_hidden_layers": 1,
}
SLIDING = HF | {
    "quantization_config": {"quant_method": "mxfp4"},
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
GEMMA_4 = HF | {
    "model_type": "gemma4_text",
    "num_hidden_layers": 60,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "enable_moe_block": False,
    "sliding_window": 1024,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "vocab_size": 262144,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": None,
}
LATENT = HF | {
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "head_dim": 192,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1,
}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (HYBRID, "qwen3.8-27b"),
        (
            HYBRID
            | {"full_attention_interval": None, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16},
            "qwen3.6-27b",
        ),
        (SLIDING, "gpt-oss-20b"),
        (SLIDING | {"layer_types": None}, "gpt-oss-20b"),
        (GEMMA_4, "gemma-4-31b"),
        (LATENT, "deepseek-v3"),
    ],
)
def test_a_config_with_several_kinds_of_layers_gives_the_shipped_shape(config, name):
    changed = ("name", "source")
    assert shape_from_hf(config).model_dump(exclude={*changed}) == model_shape(name).model_dump(exclude={*changed})


def test_a_qwen3_next_has_an_mtp_layer_of_which_its_config_says_nothing():
    assert shape_from_hf(HYBRID | {"model_type": "qwen3_next", "mtp_num_hidden_layers": None}).mtp_layers == 1
    assert model_shape("qwen3-next-80b-a3b").mtp_layers == 1


MOONSHOTS = {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]}


@pytest.mark.parametrize(
    ("quantization", "published_in"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq-int4"),
        ({"quant_method": "gptq", "bits": 4}, "gptq-int4"),
        ({"quant_method": "gptq", "bits": 8}, "bf16"),
        ({"quant_method": "of tomorrow"}, "bf16"),
        (MOONSHOTS | {"format": "pack-quantized"}, "int4-experts"),
        (MOONSHOTS | {"format": "mxfp4-pack-quantized"}, "mxfp4"),
        (MOONSHOTS | {"format": "of tomorrow"}, "bf16"),
        (MOONSHOTS | {"format": "pack-quantized", "ignore": ["lm_head"]}, "bf16"),
        (None, "bf16"),
    ],
)
def test_a_config_says_how_its_weights_are_published(quantization, published_in):
    assert shape_from_hf(LATENT | {"quantization_config": quantization}).published_in == published_in


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("qwen3.6-35b-a3b", 3e9),
        ("gpt-oss-120b", 5.1e9),
        ("gemma-4-26b-a4b", 3.8e9),
        ("step-3.5-flash", 11e9),
        ("deepseek-v3", 37e9),
        ("deepseek-v4-flash", 13e9),
        ("glm-5.2", 40e9),
        ("glm-4.6", 32e9),
        ("qwen3-coder-480b-a35b", 35e9),
        ("minimax-m2", 10e9),
        ("llama-4-maverick", 17e9),
        ("deepseek-v2", 21e9),
    ],
)
def test_one_token_computes_with_as_many_parameters_as_are_published_to_be_active(name, active):
    shape = model_shape(name)
    per_layer = shape.layer_flops(1, 0) / 2
    assert shape.num_layers * per_layer + shape.head_parameters == pytest.approx(active, rel=0.05)
    assert per_layer == pytest.approx(shape.layer_weight_bytes("bf16", 1) / 2, rel=0.05)


def test_a_wrong_shape_file_names_the_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nsource: me\nnum_heads: 1\nnum_kv_heads: 1\nhead_dim: 1\nnum_layers: many\n")
    with pytest.raises(ConfigError, match="mine.yaml:6"):
        model_shape(path)
