"""How a case's target is stored: what people call its weights, where they lie, and how many tokens it caches."""

import pytest

from planner.retrodict.cases import Case
from planner.retrodict.predicted_speeds import PredictedCase
from planner.retrodict.retrodiction import retrodict


def asked(shape="qwen3-8b", weights=None, **changed) -> Case:
    told = {"id": "a case", "device": "RTX 4090", "plain_tokens_per_s": 40.0, "published_tokens_per_s": {3: 70.0}}
    drafter = {"kind": "draft", "shape": "qwen3-0.6b"}
    return Case.model_validate({**told, "target": {"shape": shape, "weights": weights}, "drafter": drafter} | changed)


@pytest.mark.parametrize(
    ("engine", "shape", "weights", "stored"),
    [
        ("vLLM", "Qwen/Qwen3-32B-AWQ", None, "awq-int4"),
        ("vLLM", "Qwen3-8B-FP8", None, "fp8"),
        ("vLLM", "Qwen2.5-7B-Instruct-GPTQ-Int8", None, "w8a16"),
        ("vLLM", "Qwen3-8B-FP8", "bf16", "bf16"),
        ("vLLM", "qwen3-8b", None, "bf16"),
        ("llama.cpp", "qwen3-8b", "Q4_0_4_4", "q4_0"),
        ("llama.cpp", "gpt-oss-20b", None, "mxfp4_moe"),
        ("mlx-lm", "gpt-oss-20b", None, "mlx-mxfp4"),
        ("mlx-lm", "gpt-oss-20b", "mxfp4-q8", "mlx-mxfp4_q8"),
        ("mlx-lm", "DeepSeek-V4-Flash", None, "mlx-mxfp4"),
        ("mlx-lm", "mlx-community/Qwen3-8B-6bit", None, "mlx-6bit"),
        ("mlx-lm", "Qwen3-8B-5bit", None, "mlx-5bit"),
        ("mlx-lm", "qwen3-8b", "3-bit", "mlx-3bit"),
        ("mlx-lm", "qwen3-8b", "int4", "mlx-4bit"),
    ],
)
def test_weights_are_stored_as_the_case_says_or_the_targets_name_in_files_of_the_engine(engine, shape, weights, stored):
    found = PredictedCase.of(asked(shape, weights, engine=engine, device="M4 Max" if "mlx" in engine else "H100"))
    assert found.target.weights == stored


def test_weights_of_a_draft_are_files_of_the_engine_and_told_by_its_name():
    drafts = ({"shape": "qwen3-0.6b", "weights": "6bit"}, {"shape": "mlx-community/Qwen3-0.6B-6bit"})
    cases = [asked(engine="mlx-lm", device="M4 Max", drafter={"kind": "draft"} | one) for one in drafts]
    assert [PredictedCase.of(one).draft.model.weights for one in cases] == ["mlx-6bit"] * 2


def test_speeds_are_told_where_the_targets_name_says_how_it_is_stored():
    questions = [{one.question for one in retrodict([asked(name)]).found} for name in ("Qwen3-8B-AWQ", "Qwen3-8B")]
    assert questions == [{"ratio", "absolute", "plain"}, {"ratio"}]


@pytest.mark.parametrize(
    ("changed", "is_told"),
    [
        ({"shape": "gpt-oss-120b"}, True),
        ({"shape": "gpt-oss-120b", "weights": "mxfp4"}, False),
        ({"shape": "qwen3-32b", "weights": "q5_k_m"}, True),
        ({"shape": "qwen3-32b", "weights": "q6_k"}, True),
        ({"shape": "qwen3-32b", "weights": "q6_k", "note": "experts of 20 layers in host memory"}, False),
        ({"shape": "qwen3-32b", "weights": "q6_k", "note": "--n-cpu-moe 12"}, False),
        ({"shape": "qwen3-32b", "weights": "q6_k", "engine": "PowerInfer"}, False),
        ({"shape": "deepseek-v3", "weights": "q4_k_m", "engine": "KTransformers"}, False),
        ({"shape": "qwen3-8b", "weights": "q4_k_m", "note": "all layers offloaded to the GPU"}, True),
    ],
)
def test_a_gain_is_not_told_where_weights_that_do_not_fit_are_known_to_lie_elsewhere(changed, is_told):
    assert bool(retrodict([asked(**changed)]).of("ratio")) is is_told


@pytest.mark.parametrize(("told", "context"), [("32k", 32768), ("4,096", 4096), ("512", 512), (65537, 65537)])
def test_a_context_is_told_as_in_keys_and_may_be_longer_than_the_config_has(told, context):
    found = retrodict([asked(weights="q4_k_m", context=told)])
    assert {one.speed.context for one in found.found} == {context}
    assert {one.question for one in found.found} == {"ratio", "absolute", "plain"}
