"""Weights by the names people type, held against the sizes of files that are public."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from hwprofiles.model_shape import model_shape
from hwprofiles.weights.formats import stored_weights, weight_formats, weights_in_name, weights_named, weights_told

LLAMA_8B_BITS = {
    "iq1_s": 2.0042,
    "iq2_xs": 2.5882,
    "iq3_xxs": 3.2548,
    "iq4_xs": 4.4597,
    "q2_k": 3.1593,
    "q4_k_s": 4.6672,
}
LLAMA_8B_BITS |= {"q4_k_m": 4.8944, "q5_k_m": 5.7036, "q6_k": 6.5633, "q8_0": 8.5008, "q3_k_l": 4.2979}
"""Bits a weight of whole files, as llama.cpp's README prints them."""
FILE_GB = [
    ("llama-3.1-70b", "q4_k_m", 43.1e9),  # llama.cpp, tools/quantize/README.md (its GB are GiB x 1.0737)
    ("glm-4.5-air", "q4_k_m", 70.56e9),  # llama-bench's 65.71 GiB of 106.85 B parameters; rows of 1,408
    ("deepseek-v2-lite", "q4_k_m", 10.36e9),  # 9.65 GiB
    ("qwen2.5-0.5b", "q4_k_m", 391.9e6),  # 373.71 MiB; rows of 896
    ("gemma-3-1b", "q4_k_m", 799.5e6),  # 762.49 MiB; rows of 1,152
    ("gemma-4-26b-a4b", "iq2_m", 10.71e9),  # bartowski's, 9.97 GiB; rows of 704
    ("qwen2.5-0.5b", "iq3_m", 343e6),  # bartowski's, 327 MiB
    ("qwen3-8b", "awq-int4", 6.1e9),
    ("qwen3-30b-a3b", "q4_k_m", 18.6e9),
    ("qwen3-14b", "fp8", 16.3e9),
    ("qwen3.5-27b", "q8_0", 28.6e9),  # ggml-org/Llama-macOS#63, as the next
    ("qwen3.5-35b-a3b", "q8_0", 36.9e9),
    ("gpt-oss-20b", "mxfp4", 13.8e9),
    ("gpt-oss-20b", "mxfp4_moe", 12.1e9),
    ("gpt-oss-120b", "mxfp4_moe", 63.4e9),
    ("kimi-k2-thinking", "int4-experts", 594e9),
    ("kimi-k2-thinking", "q4_x", 583.7e9),  # ubergarm/Kimi-K2-Thinking-GGUF, 543.617 GiB
    ("kimi-k3", "mxfp4", 1.56e12),  # turboquant-mlx#70, with a vision encoder
]
TYPED = {
    "UD-Q4_K_XL": "q4_k_xl",
    "ud-q4_k_m": "q4_k_m",
    "Q4-K-M": "q4_k_m",
    "Q4_K": "q4_k_m",
    "BF16": "bf16",
    "F16": "fp16",
    "W4A8": "awq-int4",
    "AWQ": "awq-int4",
    "AWQ int4 g32": "awq-int4",
    "4-bit g64": "mlx-4bit",
    "NVFP4": "nvfp4",
    "IQ4_XS_R4": "iq4_xs",
    "FP8 block": "fp8",
    "INT4 g128": "int4",
    "int8": "int8",
}


@pytest.mark.parametrize("name", LLAMA_8B_BITS)
def test_a_whole_file_has_the_published_bits(name):
    shape = model_shape("llama-3.1-8b")
    assert shape.weight_bytes(name) * 8 / shape.num_parameters == pytest.approx(LLAMA_8B_BITS[name], rel=0.002)


@pytest.mark.parametrize(("shape", "name", "num_bytes"), FILE_GB)
def test_other_files_are_as_large(shape, name, num_bytes):
    assert model_shape(shape).weight_bytes(name) == pytest.approx(num_bytes, rel=0.03)


@pytest.mark.parametrize(("typed", "name"), TYPED.items())
def test_a_name_is_found_however_it_is_spelt(typed, name):
    assert weights_named(typed) == name


@given(st.sampled_from(sorted(weight_formats())), st.sampled_from(["", "UD-", "ud_"]), st.sampled_from("-_ "))
def test_case_prefix_and_dashes_do_not_matter(name, prefix, dash):
    assert weights_named((prefix + name.replace("_", dash)).upper()) == name


def test_every_alias_means_one_format():
    aliases = [alias for one in weight_formats().values() for alias in one.aliases]
    assert len(aliases) == len(set(aliases))
    assert all(weights_named(alias) == name for name, one in weight_formats().items() for alias in one.aliases)


@pytest.mark.parametrize(
    ("typed", "hint"), [("q4_k_n", "q4_k_m"), ("awq8", "awq-int4"), ("zzz", "others, less like it")]
)
def test_a_name_that_is_unknown_is_told_what_is_close(typed, hint):
    with pytest.raises(ConfigError, match=f"no weight format is called .*{hint}"):
        weights_named(typed)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("q4_k_m", 8.5), ("q4_0", 8.5), ("q5_0", 8.5), ("q6_k", 8.5), ("iq2_m", 8.5), ("q8_0", 8.5), ("mlx-5bit", 5.5)],
)
def test_a_gguf_head_with_rows_of_no_whole_blocks_is_in_eight_bits(name, bits):
    assert stored_weights(name).head_bits_of(896) == bits
    assert stored_weights(name).head_bits_of(1024) == stored_weights(name).head_bits


def test_only_the_experts_of_gpt_oss_are_in_four_bits():
    """OpenAI's file of Qwen3-30B-A3B, were there one: experts in 4.25 bits, all else in 16."""
    shape = model_shape("qwen3-30b-a3b")
    experts = shape.num_layers * shape.num_experts * shape.expert_parameters
    assert shape.weight_bytes("mxfp4") == (experts * 4.25 + (shape.num_parameters - experts) * 16) / 8
    assert stored_weights("mxfp4").dense_bits == 16


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("QAT Q4_0", "q4_0"),
        ("qat-q4_0", "q4_0"),
        ("FP8 (block), BF16 cache", "fp8"),
        ("int4 AWQ", "awq-int4"),
        ("Q4_K_M imatrix", "q4_k_m"),
        ("exl2 4.5bpw", "q4_0"),
        ("EXL2-4.5", "q4_0"),
        ("3-bit", "q2_k_xl"),
        ("GPTQ-Int8", "w8a16"),
        ("AWQ 8bit", "w8a16"),
        ("q4_k_m.gguf", "q4_k_m"),
    ],
)
def test_a_format_is_found_in_what_people_say(told, name):
    assert weights_told(told) == name


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("unsloth/Qwen3-8B-GGUF", "q4_k_m"),
        ("bartowski/Qwen3-8B-GGUF/Qwen3-8B-IQ4_XS.gguf", "iq4_xs"),
        ("mradermacher/Qwen3-8B.i1-IQ3_M.gguf", "iq3_m"),
        ("mlx-community/Qwen3-8B-4bit", "mlx-4bit"),
        ("google/gemma-3-27b-it-qat-q4_0-unquantized", "bf16"),
        ("me/gemma-3-27b-it-qat-q4_0-unquantized-GGUF/gemma-3-27b-it-qat-q4_0-unquantized.Q8_0.gguf", "q8_0"),
        ("me/gemma-3-27b-it-qat-q4_0-unquantized-FP8", "fp8"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "nf4"),
        ("Qwen/Qwen3-8B", None),
        ("me/llama-8b-merged_16bit", None),
        ("qwen3:8b", "q4_k_m"),
        ("llama3.1:8b-instruct-q8_0", "q8_0"),
        ("gemma3:12b-it-qat-q4_0", "q4_0"),
        ("unsloth/Qwen3-8B-GGUF:Q8_0", "q8_0"),
        ("hf.co/unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "q4_k_xl"),
        ("OpenVINO/Qwen3-8B-int8-ov", "int8"),
        ("OpenVINO/Qwen3-8B-int4-cw-ov", "int4"),
        ("OpenVINO/Qwen3-8B-fp16-ov", "fp16"),
        ("mlx-community/gpt-oss-20b-MXFP4-Q8", "mlx-mxfp4_q8"),
        ("mlx-community/gpt-oss-120b-MXFP4-Q4", "mlx-mxfp4_q4"),
        ("mlx-community/Qwen3-8B-bf16", "mlx-bf16"),
        ("mlx-community/Qwen3-30B-A3B-4bit-DWQ", "mlx-4bit"),
        ("mlx-community/Qwen3-8B-6bit", "mlx-6bit"),
        ("lmstudio-community/Qwen3-8B-MLX-8bit", "mlx-8bit"),
        ("Qwen/Qwen3-8B-MLX-bf16", "mlx-bf16"),
        ("lmstudio-community/Qwen3-8B-MLX", "mlx-4bit"),
        ("mlx-community/Qwen3-8B", None),
        ("Qwen/Qwen3-8B-MLX-int4", "mlx-4bit"),
        ("mlx-community/Qwen3-8B-nvfp4", "mlx-nvfp4"),
        ("mlx-community/Qwen3-8B-mxfp8", "mlx-mxfp8"),
        ("mlx-community/gpt-oss-20b-mxfp4-q6", "mlx-mxfp4_q6"),
        ("mlx-community/gpt-oss-20b-mxfp4-q5", "mlx-mxfp4"),
        ("me/Qwen3-8B-MLX-2bit", "mlx-2bit"),
        ("mlx-community/Qwen3-8B-1.58bit", "mlx-2bit"),
        ("mlx-community/Qwen3-8B-3.5bit", "mlx-3bit"),
        ("mlx-community/Qwen3-8B-q4", "mlx-4bit"),
        ("mlx-community/gemma-3-27b-it-qat-q4_0-unquantized-bf16", "mlx-bf16"),
        ("me/Qwen3-8B-mlx-gguf", "q4_k_m"),
    ],
)
def test_the_name_of_a_repository_or_a_file_tells_its_weights(name, weights):
    assert weights_in_name(name) == weights


@given(st.text("abq-_.0123456789mlxfpnvit", max_size=20))
def test_what_a_name_of_mlx_tells_is_no_other_engines(name):
    assert (weights_in_name(f"mlx-community/{name}") or "mlx-").startswith("mlx-")


def test_what_gpt_oss_is_published_in_stays_in_files_of_ollama_and_has_a_type_of_its_own_in_others():
    """Ollama's file of gpt-oss:20b has 14 GB, llama.cpp's 12.1."""
    assert weights_in_name("gpt-oss:20b", "mxfp4") == "mxfp4"
    assert weights_in_name("unsloth/gpt-oss-20b-GGUF:F16", "mxfp4") == "fp16"
    assert weights_in_name("ggml-org/gpt-oss-20b-GGUF", "mxfp4") == "mxfp4_moe"


def test_words_that_name_no_format_are_told_what_is_close():
    with pytest.raises(ConfigError, match="no weight format is called 'q4_z of mine'"):
        weights_told("q4_z of mine")
