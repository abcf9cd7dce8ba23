import json
import re

import pytest

from decoding.schedule import Schedule
from hwprofiles.engines import platform_run_by
from hwprofiles.model_shape import model_shape
from hwprofiles.models.head_shapes import LOOKUP, head_shape
from hwprofiles.overrides import with_devices
from hwprofiles.platform import load_platform
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.engine_commands import drafting_head, runs_on
from sim.derived.roofline import StoredModel

DEMO = "mirrorsd demo --target TARGET --drafter"


def engines(platform, target, draft, *, head=None, models=None, weights="bf16", cache_bits=16, **settings):
    machine = load_platform(platform) if isinstance(platform, str) else platform
    pair = LanePair(target, draft, in_turn=target == draft)
    asked = {"method": "speculative", "num_speculative_tokens": 3, "drafter": "d", "draft_lane": draft} | settings
    stored = [
        StoredModel(shape=model_shape(name), weights=weights, cache_bits=cache_bits) for name in models or ("qwen3-8b",)
    ]
    found = runs_on(machine, pair, Schedule(target_lane=target, **asked), stored, head)
    return {one.engine: one.options for one in found}


@pytest.mark.parametrize("engine", ["vllm", "SGLang", "sglang 0.5", "LM Studio"])
def test_the_engine_that_was_named_comes_first(engine):
    first = next(iter(engines(platform_run_by(load_platform("rtx4090"), engine), "gpu", "gpu")))
    assert first == {"LM Studio": "llama.cpp"}.get(engine, engine.lower().split()[0])


def test_a_draft_on_the_targets_card_runs_in_the_usual_engines():
    found = engines("rtx4090", "gpu", "gpu")
    assert list(found) == ["llama.cpp", "vllm", "sglang"]
    assert "--spec-type draft-simple -md DRAFT.gguf --spec-draft-n-max 3" in found["llama.cpp"]
    config = json.loads(re.search(r"'(\{.*\})'", found["vllm"])[1])
    assert config == {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": 3}
    assert "--speculative-num-draft-tokens 4" in found["sglang"]


def test_only_llama_cpp_puts_a_draft_on_the_cpu_beside_a_card():
    found = engines("rtx4090", "gpu", "cpu")
    assert list(found) == ["llama.cpp"]
    assert found["llama.cpp"].endswith("-devd none")


def test_llama_cpp_is_told_to_leave_the_card_alone_where_a_model_is_on_the_cpu():
    beside, both = (engines("rtx4090", "cpu", draft)["llama.cpp"] for draft in ("gpu", "cpu"))
    assert beside.startswith("llama-server -m TARGET.gguf -dev none --spec-type")
    assert beside.endswith("-devd GPU")
    assert both.startswith("llama-server -m TARGET.gguf -dev none --spec-type")
    assert both.endswith("-devd none")
    assert "-devd" not in engines("rtx4090", "cpu", "cpu", method="prompt_lookup")["llama.cpp"]
    for alone in ("core-i9-14900k", "graviton4"):  # Amazon's CPUs are like others, its accelerators are not
        assert "-dev" not in engines(alone, "cpu", "cpu")["llama.cpp"], "nothing else is there"


@pytest.mark.parametrize(
    ("platform", "target", "draft", "told"),
    [
        ("2xrtx3090", "gpus", "gpus", ["--split-mode tensor"]),
        ("2xrtx3090", "gpus", "gpu0", ["--split-mode tensor", "-devd GPU0"]),
        ("2xrtx3090", "gpu0", "gpu0", ["-dev GPU0", "-devd GPU0"]),
        ("2xrtx3090", "gpu0", "gpu1", ["-dev GPU0", "-devd GPU1"]),
        ("2xrtx3090", "gpu0", "cpu", ["-dev GPU0", "-devd none"]),
        ("2xrtx3090", "cpu", "gpus", ["-dev none", "-devd GPU0,GPU1"]),
        ("h100x2+1", "target", "gpu2", ["-dev GPU0,GPU1", "--split-mode tensor", "-devd GPU2"]),
    ],
)
def test_llama_cpp_is_told_which_of_several_gpus_a_model_is_on(platform, target, draft, told):
    """Else it takes all of them, for each model. Of two devices one name would be another placement."""
    if platform == "h100x2+1":
        platform = load_platform("h100x3").model_copy(update={"groups": {"target": ("gpu0", "gpu1")}})
    options = engines(platform, target, draft)["llama.cpp"]
    assert re.findall(r"-devd? \S+|--split-mode \w+", options) == told
    plain = {"method": "autoregressive", "num_speculative_tokens": 0, "drafter": None, "draft_lane": None}
    alone = engines(platform, target, target, **plain)["llama.cpp"]
    assert re.findall(r"-devd? \S+|--split-mode \w+", alone) == [one for one in told if not one.startswith("-devd")]


def test_servers_run_a_draft_model_on_all_gpus_of_its_target_and_on_no_others():
    """vLLM refuses any other `draft_tensor_parallel_size` than the target's."""
    for target, draft in (("gpus", "gpu0"), ("gpu0", "gpu1")):
        assert list(engines("2xrtx3090", target, draft)) == ["llama.cpp"]
        assert engines("2xrtx3090", target, draft, weights="awq") == {}
    for lane in ("gpus", "gpu0"):
        assert set(engines("2xrtx3090", lane, lane)) == {"llama.cpp", "vllm", "sglang"}
    assert "vllm" in engines("2xrtx3090", "gpus", "gpu0", head="eagle3"), "heads are on the target's"


def test_openvino_names_the_device_of_each_model():
    found = engines("lunar-lake", "gpu", "npu")
    assert list(found) == ["openvino.genai"]
    assert found["openvino.genai"] == (
        'openvino_genai.LLMPipeline("TARGET", "GPU", draft_model=openvino_genai.draft_model("DRAFT", "NPU"))'
        ".generate(PROMPT, num_assistant_tokens=3)"
    )
    lookup = engines("lunar-lake", "gpu", "gpu", method="prompt_lookup", head=LOOKUP)["openvino.genai"]
    assert lookup.endswith("prompt_lookup=True).generate(PROMPT, num_assistant_tokens=3, max_ngram_size=4)")


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        ("gpus", "gpus", []),
        ("gpu0", "gpu1", []),
        ("gpu1", "cpu0", []),
        ("gpu1", "gpu1", ["mlx-lm", "llama.cpp"]),
        ("gpu0", "cpu0", ["llama.cpp"]),
    ],
)
def test_no_engine_is_named_for_machines_that_cables_join(target, draft, expected):
    assert list(engines("m2-ultra-x8", target, draft)) == expected


def test_the_gpus_of_other_machines_are_not_seen():
    assert engines("m2-ultra-x8", "gpu1", "gpu1")["llama.cpp"] == engines("m4-max", "gpu", "gpu")["llama.cpp"]


def test_a_chip_beside_a_card_is_one_machine():
    desktop = with_devices(load_platform("rtx4090"), ["radeon-780m@unified-memory"])
    assert list(engines(desktop, "gpu", "radeon-780m")) == ["llama.cpp"]


def test_no_engine_runs_on_an_accelerator_that_it_has_no_back_end_for():
    assert engines("tpu-v5e", "gpu", "gpu") == {}
    assert engines("gaudi3", "gpu", "gpu") == {}


@pytest.mark.parametrize(
    ("head", "engine", "option"),
    [("mtp", "vllm", '"mtp"'), ("mtp", "sglang", "--speculative-algorithm EAGLE "), ("eagle3", "sglang", "EAGLE3")],
)
def test_heads_are_named_as_engines_call_them(head, engine, option):
    assert option in engines("h100x2", "gpus", "gpus", head=head)[engine]
    assert "2" in engines("h100x2", "gpus", "gpus", head=head)["vllm"]


def test_sglang_is_told_no_steps_of_what_drafts_a_block_at_once():
    """It takes no other number of them than one, and warns of it."""
    found = engines("h100", "gpu", "gpu", method="block", head="dflash")["sglang"]
    assert found.endswith(
        "--speculative-algorithm DFLASH --speculative-draft-model-path DRAFT --speculative-num-draft-tokens 4"
    )


@pytest.mark.parametrize(
    ("target", "weights", "is_whole"),
    [
        ("qwen3-235b-a22b", "fp8", True),
        ("deepseek-v3", "fp8", False),
        ("qwen3-235b-a22b", "bf16", False),
        ("qwen3-4b", "fp8", False),
    ],
)
def test_experts_stay_whole_where_eight_gpus_would_cut_the_blocks_of_their_scales(target, weights, is_whole):
    """Else vLLM says "192 is not divisible by weight quantization block_n = 128" (vllm-project/vllm#17327)."""
    found = engines("8xh100", "gpus", "gpus", head="eagle3", weights=weights, models=[target])
    assert ("--tensor-parallel-size 8 --enable-expert-parallel " in found["vllm"]) == is_whole
    assert ("--tp 8 --ep 8 " in found["sglang"]) == is_whole


def test_what_is_called_mtp_and_has_its_own_files_is_loaded_from_them():
    gemma, qwen = (
        drafting_head(StoredModel(shape=head_shape("mtp", model_shape(target)), weights="bf16", head="mtp"))
        for target in ("gemma-4-31b", "qwen3.6-27b")
    )
    assert qwen == "mtp"
    found = engines("rtx4090", "gpu", "gpu", head=gemma)
    assert "--spec-type draft-mtp -md DRAFT.gguf --spec-draft-n-max 3" in found["llama.cpp"]
    config = json.loads(re.search(r"'(\{.*\})'", found["vllm"])[1])
    assert config == {"method": "mtp", "model": "DRAFT", "num_speculative_tokens": 3}
    assert "--speculative-algorithm EAGLE --speculative-draft-model-path DRAFT" in found["sglang"]
    eager = platform_run_by(load_platform("rtx4090"), "transformers")
    assert "assistant_model=DRAFT" in engines(eager, "gpu", "gpu", head=gemma)["transformers"]
    assert "transformers" not in engines(eager, "gpu", "gpu", head=qwen)


def test_lookups_are_chains_after_one_to_four_tokens_as_the_planned_ones():
    """vLLM takes the most tokens for the fewest where these are untold; SGLang drafts trees of its own breadth."""
    found = engines("rtx4090", "gpu", "gpu", method="prompt_lookup", head=LOOKUP)
    config = json.loads(re.search(r"'(\{.*\})'", found["vllm"])[1])
    assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == (1, 4)
    assert found["sglang"].endswith(
        " --speculative-algorithm NGRAM --speculative-ngram-min-bfs-breadth 1 --speculative-ngram-max-bfs-breadth 1 "
        "--speculative-num-draft-tokens 4"
    )


def test_mirror_runs_on_no_engine_but_this_projects_own():
    mirror = {"method": "mirror", "root_source": "draft", "draft_top_k": 2}
    assert engines("rtx4090", "gpu", "cpu", **mirror) == {}
    lanes = load_platform("cpu-2core").lanes
    target, draft = list(lanes)[:2]
    assert engines("cpu-2core", target, draft, **mirror) == {"mirrorsd": f"{DEMO} DRAFT"}
    assert next(iter(engines("cpu-2core", target, target))) == "mirrorsd", "whose lanes the predictions are of"
    lookup = {"method": "prompt_lookup", "head": LOOKUP, "drafter": None}
    assert engines("cpu-2core", target, target, **lookup)["mirrorsd"] == f"{DEMO} none", "which looks up prompts"


def test_plain_decoding_takes_no_option_of_speculation():
    found = engines(
        "rtx4090", "gpu", "gpu", method="autoregressive", num_speculative_tokens=0, drafter=None, draft_lane=None
    )
    assert found["llama.cpp"] == "llama-server -m TARGET.gguf"
    assert found["vllm"] == "vllm serve TARGET"
    lookup = {"method": "prompt_lookup", "head": LOOKUP, "drafter": None, "cache_bits": 8}
    assert engines("rtx4090", "gpu", "gpu", **lookup)["llama.cpp"].endswith(" -ctk q8_0 -ctv q8_0"), "no draft's cache"


def test_cards_that_split_a_model_share_its_tensors():
    """llama.cpp's default puts its layers on one card after the other."""
    assert " --split-mode tensor " in engines("2xrtx3090", "gpus", "gpus")["llama.cpp"]
    assert "--split-mode" not in engines("2xrtx3090", "gpu0", "gpu0")["llama.cpp"]


def test_engines_that_split_attention_heads_evenly_are_named_where_that_can_be_done():
    for num, models, are_even in (
        (3, ["mistral-large-123b"], True),
        (3, ["qwen3-32b"], False),
        (4, ["qwen2.5-72b", "qwen2.5-3b"], True),
        (4, ["qwen2.5-72b", "qwen2.5-0.5b"], False),
    ):
        found = list(engines(f"{num}xh100", "gpus", "gpus", models=models))
        assert found == ["vllm", "sglang"] * are_even + ["llama.cpp"]


@pytest.mark.parametrize(
    ("platform", "engine", "first"),
    [
        ("h100", "tensorrt-llm", "vllm"),
        ("h100", "sglang", "sglang"),
        ("m4-max", "mlx", "mlx-lm"),
        ("m4-max", "ollama", "llama.cpp"),
        ("rtx4090", "mlx", "mlx-lm"),
        ("strix-halo", "vllm", "vllm"),
        ("lunar-lake", None, "openvino.genai"),
        ("lunar-lake", "llama.cpp", "llama.cpp"),
        ("arc-b580", None, "llama.cpp"),
    ],
)
def test_the_first_engine_is_the_one_that_was_asked_about_or_whose_speeds_stand_for_it(platform, engine, first):
    machine = load_platform(platform) if engine is None else platform_run_by(load_platform(platform), engine)
    assert next(iter(engines(machine, "gpu", "gpu"))) == first


@pytest.mark.parametrize(
    ("platform", "weights", "expected"),
    [
        ("rtx4090", "awq", ["vllm", "sglang"]),
        ("rtx4090", "q4_k_m", ["llama.cpp"]),
        ("rtx4090", "nvfp4", ["llama.cpp", "vllm", "sglang"]),
        ("h100", "UD-Q4_K_XL", ["llama.cpp"]),
        ("m4-max", "mlx-4bit", ["mlx-lm"]),
        ("m4-max", "awq", []),
        ("rx7900xtx", "awq", ["vllm", "sglang"]),
        ("rx7900xtx", "bf16", ["llama.cpp"]),
    ],
)
def test_weights_of_an_engine_run_there_alone(platform, weights, expected):
    assert list(engines(platform, "gpu", "gpu", weights=weights)) == expected


@pytest.mark.parametrize(
    ("platform", "bits", "expected"),
    [
        (
            "rtx4090",
            8,
            {"llama.cpp": "-ctk q8_0 -ctv q8_0 -ctkd q8_0 -ctvd q8_0", "vllm": "fp8", "sglang": "fp8_e4m3"},
        ),
        ("rtx4090", 4, {"llama.cpp": "-ctk q4_0 -ctv q4_0 -ctkd q4_0 -ctvd q4_0"}),
        ("m4-max", 4, {"llama.cpp": "-ctkd q4_0 -ctvd q4_0", "mlx-lm": "--kv-bits 4"}),
        ("lunar-lake", 3, {}),
    ],
)
def test_fewer_bits_for_keys_and_values_are_asked_for_and_other_engines_left_out(platform, bits, expected):
    found = engines(platform, "gpu", "gpu", cache_bits=bits)
    assert {engine: options.endswith(expected[engine]) for engine, options in found.items()} == dict.fromkeys(
        expected, True
    )


def test_lanes_of_this_project_load_no_weights_of_other_engines():
    target = next(iter(load_platform("cpu-2core").lanes))
    assert "mirrorsd" in engines("cpu-2core", target, target, weights="int8")
    assert list(engines("cpu-2core", target, target, weights="q8_0")) == ["llama.cpp"]


def test_transformers_is_named_where_it_is_asked_for():
    asked = platform_run_by(load_platform("rtx4090"), "transformers")
    command = (
        "DRAFT.generation_config.update(num_assistant_tokens=3, assistant_confidence_threshold=0); "
        "TARGET.generate(**INPUTS, assistant_model=DRAFT)"
    )
    assert engines(asked, "gpu", "gpu")["transformers"] == command
    assert next(iter(engines(asked, "gpu", "gpu"))) == "transformers"
    assert "transformers" not in engines("rtx4090", "gpu", "gpu")


def test_transformers_loads_checkpoints_of_servers_and_no_files_of_llama_cpp():
    asked = platform_run_by(load_platform("rtx4090"), "transformers")
    assert next(iter(engines(asked, "gpu", "gpu", weights="awq-int4"))) == "transformers"
    assert next(iter(engines(asked, "gpu", "gpu", weights="fp8"))) == "transformers"
    assert "transformers" not in engines(asked, "gpu", "gpu", weights="q4_k_m")


def test_the_fork_of_llama_cpp_is_told_in_its_own_words_where_it_is_asked_for():
    asked = platform_run_by(load_platform("rtx4090"), "ik_llama.cpp")
    found = engines(asked, "gpu", "gpu", weights="q4_k_m")
    assert next(iter(found.items())) == (
        "ik_llama.cpp",
        "llama-server -m TARGET.gguf -ngl 99 -md DRAFT.gguf --draft-p-min 0 --draft-max 3",
    )
    plain = engines(
        asked, "gpu", "gpu", method="autoregressive", num_speculative_tokens=0, drafter=None, draft_lane=None
    )
    assert plain["ik_llama.cpp"] == "llama-server -m TARGET.gguf -ngl 99"
    assert "ik_llama.cpp" not in engines(asked, "gpu", "cpu", weights="q4_k_m")
    assert "ik_llama.cpp" not in engines("rtx4090", "gpu", "gpu", weights="q4_k_m")


@pytest.mark.parametrize(("device", "are_new"), [("gtx1080ti", False), ("p40", False), ("rtx2060", True)])
def test_vllm_and_sglang_run_on_no_gpu_before_volta(device, are_new):
    assert ({"vllm", "sglang"} <= set(engines(device, "gpu", "gpu"))) == are_new
