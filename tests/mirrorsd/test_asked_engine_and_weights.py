"""The engine and the weights of a plan: those that are asked for, that names tell, or that are usual."""

import pytest

from decoding.errors import ConfigError, PlanError
from hwprofiles.overrides import with_devices
from hwprofiles.platform import load_platform
from mirrorsd.pair_on_platform import PlannedMachine, Storage, plan_pair, question_of
from planner.plan_engines import best_with_engine, engines_of
from planner.platform_plan.advice import advice
from planner.published.published_gains import published_like
from tests.mirrorsd.test_pair_on_platform import PROFILE


def test_a_model_that_is_published_in_few_bits_is_planned_in_them():
    plan = plan_pair("gpt-oss-20b", "prompt-lookup", "rx7900xtx", lengths=(64, 32))
    assert plan.question.target.weights == "mxfp4_moe"
    assert plan.plain.pair.target == "gpu"


@pytest.mark.parametrize(
    ("engine", "is_told"),
    [
        ("tensorrt-llm", True),
        ("sglang", True),
        ("vllm 0.27", False),
        ("ollama", False),
        (None, False),
    ],
)
def test_an_engine_whose_times_are_another_ones_is_told_so(engine, is_told):
    plan = plan_pair("qwen3-8b", "eagle3", PlannedMachine("h100", (), engine), lengths=(64, 32))
    assert (f"Times are vLLM's: {engine} was not measured." in advice(plan).warnings) == is_told


@pytest.mark.parametrize(
    ("engine", "weights", "others"),
    [
        ("transformers", "q4_k_m", "llama.cpp or ik_llama.cpp"),
        ("vllm", "mlx-4bit", "mlx"),
        ("llama.cpp vulkan", "awq-int4", "vllm or transformers"),
        ("mlx", "fp8", "vllm or transformers"),
    ],
)
def test_weights_that_the_asked_engine_does_not_load_are_refused_with_those_that_do(engine, weights, others):
    message = f"engine '{engine}' does not load {weights}: give {others} as the engine, or --weights bf16, int8 or int4"
    with pytest.raises(ConfigError, match=message):
        plan_pair("qwen3-8b", "qwen3-0.6b", PlannedMachine("rtx4090", (), engine), weights=weights)
    drafts = Storage(None, weights)
    with pytest.raises(ConfigError, match="--draft-weights"):
        plan_pair("qwen3-8b", "qwen3-0.6b", PlannedMachine("rtx4090", (), engine), weights=drafts)


@pytest.mark.parametrize("weights", ["bf16", "int4", "awq-int4", "fp8"])
@pytest.mark.parametrize("engine", ["transformers", "sglang"])
def test_times_and_command_are_of_the_engine_that_is_asked_for(engine, weights):
    plan = plan_pair("qwen3-8b", "qwen3-0.6b", PlannedMachine("rtx4090", (), engine), lengths=(64, 32), weights=weights)
    assert engines_of(plan, best_with_engine(plan))[0].engine == engine


def test_an_asked_engine_without_a_command_is_not_answered_by_the_cpu():
    asked = PlannedMachine("rtx4090", (), "ik_llama.cpp")
    plan = plan_pair("qwen3-8b", "eagle3", asked, lengths=(64, 32), weights="q4_k_m")
    assert best_with_engine(plan).pair.target == "gpu"


def test_times_of_an_engine_that_does_not_load_the_weights_are_told_as_such():
    said = "Times are those of llama.cpp, which does not load awq-int4"
    mac, card, older = (
        advice(plan_pair("qwen3-8b", "qwen3-0.6b", platform, lengths=(64, 32), weights="awq-int4"))
        for platform in ("m4-max", "rtx4090", "gtx1080ti")
    )
    assert any(one.startswith(said) and "choose --engine vllm" in one for one in mac.warnings)
    assert any("choose --engine transformers" in one for one in older.warnings), "vLLM has no kernels for it"
    assert not any(said in one for one in card.warnings)


@pytest.mark.parametrize(
    ("platform", "engine", "weights"),
    [
        ("rtx3090", None, "mxfp4_moe"),
        ("rtx3090", "vllm", "mxfp4"),
        *[("rtx3090", engine, "mxfp4_moe") for engine in ("llama-server", "LM Studio", "ik_llama.cpp")],
        ("rtx3090", "Ollama", "mxfp4"),  # whose library has other files
        ("h100-sxm", None, "mxfp4"),
        ("h100-sxm", "llama.cpp", "mxfp4_moe"),
        ("cpu-2core", None, "mxfp4"),
        ("raspberry-pi-5", None, "mxfp4_moe"),
        ("ryzen-5800x", None, "mxfp4_moe"),
        ("lunar-lake", None, "mxfp4_moe"),
        ("m40", None, "mxfp4_moe"),
        ("gaudi3", None, "mxfp4"),
        ("ascend-910b2", None, "mxfp4"),
    ],
)
def test_llama_cpp_has_files_of_its_own_of_what_is_published_in_mxfp4(platform, engine, weights):
    question = question_of("gpt-oss-20b", "prompt-lookup", PlannedMachine(platform, engine=engine), lengths=(64, 32))
    assert question.target.weights == weights


@pytest.mark.parametrize(("platform", "engine"), [("8xh200", "vllm"), ("M3 Ultra 512 GB", "llama.cpp")])
def test_a_model_whose_checkpoint_mixes_formats_is_run_by_servers_where_these_run(platform, engine):
    plan = plan_pair("deepseek-ai/DeepSeek-V4-Flash", "mtp", platform, lengths=(64, 32))
    assert engines_of(plan, plan.plain)[0].engine == engine


@pytest.mark.parametrize(("platform", "weights"), [("h200", "int4-experts"), ("epyc-9755", "q4_x")])
def test_later_kimis_are_published_with_experts_in_four_bits_and_the_first_in_eight(platform, weights):
    later, first = (
        question_of(name, "prompt-lookup", platform, lengths=(64, 32)).target
        for name in ("Kimi-K2-Thinking", "kimi-k2")
    )
    assert (later.weights, later.shape.max_position) == (weights, 262_144)
    assert first.weights == "fp8"


def test_what_an_accelerator_does_not_hold_is_not_split_by_an_engine_without_kernels_for_it():
    with pytest.raises(PlanError, match="fits nowhere") as refused:
        plan_pair("llama-3.1-70b", "prompt-lookup", "gaudi3", lengths=(64, 32))
    assert "llama.cpp" not in str(refused.value)


@pytest.mark.parametrize(
    ("target", "draft", "weights", "stored"),
    [
        ("Qwen3-8B-Q8_0.gguf", "Qwen3-0.6B-Q4_K_M.gguf", (None, None), ("q8_0", "q4_k_m")),
        ("Qwen/Qwen3-8B-AWQ", "qwen3-0.6b", (None, None), ("awq-int4", "awq-int4")),
        ("unsloth/Qwen3-8B-GGUF", "Qwen/Qwen3-0.6B-GGUF", (None, None), ("q4_k_m", "q4_k_m")),
        ("ggml-org/gpt-oss-20b-GGUF", "prompt-lookup", (None, None), ("mxfp4_moe", "mxfp4_moe")),
        ("gpt-oss-20b-mxfp4.gguf", "prompt-lookup", (None, None), ("mxfp4_moe", "mxfp4_moe")),
        ("Qwen3-8B-Q8_0.gguf", "Qwen3-0.6B-Q8_0.gguf", ("q4_0", "q5_0"), ("q4_0", "q5_0")),
    ],
)
def test_a_name_tells_the_weights_where_memory_is_shared_and_not_those_of_a_calibration(target, draft, weights, stored):
    question = question_of(target, draft, "lunar-lake", weights=weights)
    assert (question.target.weights, question.draft.weights) == stored
    calibrated = question_of(target, draft, PROFILE, weights=weights)
    assert (calibrated.target.weights, calibrated.draft.weights) == (stored if weights[0] else ("bf16", "bf16"))


@pytest.mark.parametrize(
    ("target", "draft", "given", "stored"),
    [
        ("Qwen/Qwen3-32B-AWQ", "eagle3", None, "bf16"),
        ("qwen3-32b-fp8", "dflash", None, "bf16"),
        ("gpt-oss-120b", "eagle3", None, "bf16"),
        ("Qwen/Qwen3-32B-AWQ", "medusa", None, "bf16"),
        ("Qwen/Qwen3-32B-AWQ", "eagle3", "fp8", "fp8"),
        ("deepseek-v3", "mtp", None, "fp8"),  # a layer of its target's own files
        ("Qwen3-32B-Q4_K_M.gguf", "eagle3", None, "q4_k_m"),
        ("mlx-community/Qwen3-32B-4bit", "eagle3", None, "mlx-4bit"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-0.6b", None, "awq-int4"),
    ],
)
def test_heads_that_are_published_apart_are_in_16_bits_beside_a_servers_target(target, draft, given, stored):
    assert question_of(target, draft, "8xh200", weights=(None, given)).draft.weights == stored


@pytest.mark.parametrize(
    ("target", "platform", "weights"),
    [
        ("deepseek-v3", "8xh200", "fp8"),
        ("deepseek-v3", "m3-ultra", "int4"),
        ("qwen3-8b", "h200", "bf16"),
        ("qwen3-8b", with_devices(load_platform("rtx4090"), ["panther-lake-npu5@unified-memory"]), "bf16"),
    ],
)
def test_weights_are_as_published_but_in_at_most_4_bits_where_all_memory_is_shared(target, platform, weights):
    assert question_of(target, "prompt-lookup", platform).target.weights == weights


@pytest.mark.parametrize(
    ("platform", "weights", "asked", "taken"),
    [
        ("rtx3090", "q4_k_m", 8, 8.5),
        ("m4-max", "q4_k_m", 4, 4.5),
        ("rtx3090", "awq", 8, 8),
        ("h100", "bf16", 8, 8),
        ("rtx3090", "q4_k_m", 16, 16),
    ],
)
def test_scales_of_a_cache_count_where_its_engine_has_them(platform, weights, asked, taken):
    """llama.cpp's q8_0 has a scale of 16 bits for 32 numbers, and vLLM's fp8 none."""
    found = question_of("llama-3.1-8b", "llama-3.2-1b", platform, weights=Storage(weights, None, asked))
    for model in (found.target, found.draft):
        assert model.kv_bytes(1000) == model.shape.kv_bytes(1000) * taken / 16
    assert found.target.shape.kv_bytes(1) == 131_072


def test_published_gains_are_those_like_what_an_engine_runs_and_not_like_a_mirror_schedule():
    plan = plan_pair("qwen3-14b", "qwen3-0.6b", "Jetson AGX Orin", weights="q4_k_m", lengths=(64, 32))
    runs = best_with_engine(plan)
    gain = plan.compared(runs).value
    assert plan.drafting.schedule.method == "mirror"
    assert plan.comparison.value > 1.4 > gain > 1
    (said,) = [one for one in advice(plan).warnings if "published speed-ups" in one]
    assert said == published_like(
        gain, f", as the best of an engine is ({gain:.2f}\N{MULTIPLICATION SIGN}, {runs.place})"
    )


@pytest.mark.parametrize("platform", ["lunar-lake", "panther-lake", "x-elite"])
def test_gguf_files_are_priced_as_the_one_engine_that_loads_them_where_nobody_measured_it_too(platform):
    usual, named = (
        plan_pair("qwen3-8b", "qwen3-0.6b", PlannedMachine(platform, (), one), weights="q4_k_m", lengths=(64, 16))
        for one in (None, "llama.cpp")
    )
    assert usual.recommended.schedule == named.recommended.schedule
    assert usual.recommended.tpot_s == named.recommended.tpot_s
    assert usual.pays == named.pays


def test_what_openvino_was_measured_with_is_told_to_run_with_openvino():
    plan = plan_pair("qwen3-8b", "qwen3-0.6b", "lunar-lake", weights="int4", lengths=(64, 16))
    engines = [one.engine for one in engines_of(plan, best_with_engine(plan))]
    assert engines[:2] == ["openvino.genai", "llama.cpp"]
