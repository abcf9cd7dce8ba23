"""A model is found by the names that hubs, files and people give it, and none is taken for another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ModelError
from hwprofiles.model_shape import model_shape, shipped_models
from hwprofiles.models.model_names import aliases, named_shape

SHIPPED = shipped_models()
NAMES = {
    "Qwen/Qwen3-8B": "qwen3-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf": "llama-3.1-8b",
    "unsloth/Qwen3.8-27B-GGUF": "qwen3.8-27b",
    "mradermacher/Qwen3-8B.i1-IQ3_M.gguf": "qwen3-8b",
    "unsloth/Qwen3-8B-unsloth-bnb-4bit": "qwen3-8b",
    "Qwen3.8-27B-UD-Q4_K_XL.gguf": "qwen3.8-27b",
    "mlx-community/Qwen3-30B-A3B-4bit": "qwen3-30b-a3b",
    "google/gemma-3-27b-it-qat-q4_0-unquantized": "gemma-3-27b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": "qwen3-30b-a3b",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "CohereForAI/c4ai-command-r-plus-08-2024": "command-r-plus",
    "Command R+": "command-r-plus",
    "Command R+ 104B": "command-r-plus",
    "command-r+-08-2024": "command-r-plus",
    "moonshotai/Kimi-K2-Thinking": "kimi-k2",
    "qwen3moe 30B.A3B (MoE)": "qwen3-30b-a3b",
    "qwen2 32B": "qwen2.5-32b",
    "phi3.5": "phi-3-mini",
    "deepseek-coder-v2:16b": "deepseek-v2-lite",
    "baidu/ERNIE-4.5-21B-A3B-PT": "ernie-4.5-21b-a3b",
    "gemma4 26B.A4B (MoE)": "gemma-4-26b-a4b",
    "Llama-3.3-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3.1-8b",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "lmsys/vicuna-13b-v1.3": "llama-2-13b",
    "lmsys/vicuna-7b-v1.3": "llama-2-7b",
    "Meta-Llama-3-8B-Instruct": "llama-3.1-8b",
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": "llama-3.1-70b",
    "Qwen3-VL-30B-A3B-Instruct-AWQ": "qwen3-30b-a3b",
    "GLM-4.7-FP8": "glm-4.6",
    "Meta-Llama-3-8B-Instruct.Q4_K_M.gguf": "llama-3.1-8b",
    "Qwen3-Coder-Next 80B-A3B (MoE)": "qwen3-next-80b-a3b",
    "LLaMA2-Chat 70B": "llama-2-70b",
    "LLaMA3-Instruct 8B": "llama-3.1-8b",
    "internlm/internlm2-chat-7b": "internlm2-7b",
    "double7/vicuna-68m": "llama-68m",
    "deepseek-r1:32b": "qwen2.5-32b",
    "google/gemma-4-E2B-it": "gemma-4-e2b",
    "facebook/opt-1.3b": "opt-1.3b",
    "OPT 13B": "opt-13b",
    "qwen35-4b-mtp": "qwen3.5-4b",
    "qwen3:8b": "qwen3-8b",
    "llama3.1:8b-instruct-q8_0": "llama-3.1-8b",
    "gemma3:12b-it-qat": "gemma-3-12b",
    "qwen3:30b-a3b": "qwen3-30b-a3b",
    "unsloth/Qwen3-8B-GGUF:Q4_K_M": "qwen3-8b",
    "hf.co/unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL": "qwen3-8b",
    "bartowski/Qwen_Qwen3-8B-GGUF": "qwen3-8b",
    "bartowski/Qwen_Qwen3-8B-GGUF/Qwen_Qwen3-8B-Q4_K_M.gguf": "qwen3-8b",
    "bartowski/mistralai_Mistral-Small-3.2-24B-Instruct-2506-GGUF": "mistral-small-24b",
    "OpenVINO/Qwen3-8B-int8-ov": "qwen3-8b",
    "OpenVINO/Qwen3-8B-int4-cw-ov": "qwen3-8b",
    "mlx-community/gpt-oss-20b-MXFP4-Q8": "gpt-oss-20b",
    "mlx-community/Qwen3-30B-A3B-4bit-DWQ": "qwen3-30b-a3b",
    "mlx-community/Qwen3-8B-6bit": "qwen3-8b",
    "gpt-oss-120b-mxfp4-00001-of-00003.gguf": "gpt-oss-120b",
    "zai-org_GLM-4.5-Air-Q4_K_M-00001-of-00002.gguf": "glm-4.5-air",
    "RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16": "llama-3.1-70b",
    "RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8": "qwen2.5-7b",
    "allenai/Olmo-3-32B-Think": "olmo-3-32b",
    "qwen3-coder:30b": "qwen3-30b-a3b",
    "deepseek-r1:8b": "qwen3-8b",
    "CohereLabs/command-a-03-2025": "command-a-111b",
    "NousResearch/Hermes-4-14B": "qwen3-14b",
}


@pytest.mark.parametrize(("name", "shape"), NAMES.items())
def test_a_name_of_a_hub_or_a_file_means_a_shape(name, shape):
    found, expected = model_shape(name), model_shape(shape)
    own = {field: getattr(expected, field) for field in ("max_position", "published_in")}
    assert found.model_copy(update=own) == expected


@given(
    st.sampled_from([*SHIPPED, *aliases()]),
    st.sampled_from(["", "owner/"]),
    st.sampled_from(["", "-Instruct", "-it-GGUF", "-UD-Q4_K_XL.gguf", "-FP8", "-Instruct-2507-4bit"]),
)
def test_what_is_around_a_name_does_not_matter(name, owner, ending):
    found = named_shape(f"{owner}{name.upper()}{ending}", SHIPPED)
    assert found.shape == (aliases()[name].shape if name in aliases() else name)


@pytest.mark.parametrize("spelled", ["owner/{}", "{}-Instruct-GGUF", "owner/{}.Q4_K_M.gguf"])
def test_none_of_all_names_means_the_shape_of_another(spelled):
    shapes = {name: name for name in SHIPPED} | {alias: one.shape for alias, one in aliases().items()}
    assert {name: named_shape(spelled.format(name), SHIPPED).shape for name in shapes} == shapes


def test_an_alias_is_no_name_of_a_shape_and_leads_to_one():
    assert not set(aliases()) & set(SHIPPED)
    assert {one.shape for one in aliases().values()} <= set(SHIPPED)


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("Qwen/Qwen3-30B-A3B", 40_960),
        ("Qwen3-Coder-30B-A3B-Instruct-UD-Q4_K_XL.gguf", 262_144),
        ("Qwen/Qwen3-4B-Instruct-2507", 262_144),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8_192),
        ("moonshotai/Kimi-K2-Thinking", 262_144),
        ("mistralai/Devstral-Small-2505", 131_072),
        ("mistralai/Magistral-Small-2506", 131_072),
        ("mistralai/Devstral-Small-2-24B-Instruct-2512", 262_144),
        ("Qwen/Qwen3-VL-8B-Instruct", 262_144),
        ("qwen3-coder:30b", 262_144),
    ],
)
def test_a_model_of_anothers_shape_has_its_own_longest_context(name, positions):
    assert model_shape(name).max_position == positions


@pytest.mark.parametrize(
    "name", ["llama 8B", "Qwen3.x-27B", "gemma-4-e8b", "qwen3", "deepseek-v4-pro", "", "/", "-", "gpt-5"]
)
def test_what_ships_under_no_such_name_is_none(name):
    assert named_shape(name, SHIPPED) is None


def test_an_unknown_name_is_told_what_is_close():
    with pytest.raises(ModelError, match=r"'Qwen/Qwen3-9B'; did you mean .*qwen3.*config\.json"):
        model_shape("Qwen/Qwen3-9B")
