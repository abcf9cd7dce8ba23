"""The questions that people ask before they buy or build, each in one line, and what every answer must tell."""

import json

import pytest

from tests.mirrorsd.cli.calls import json_of

LLAMA = "--target llama-3.1-8b --draft llama-3.2-1b"
LARGE = "--target llama-3.1-70b --platform h100x2 --add h100-sxm@nvlink-4"
QUESTIONS = {
    "a card beside the chip that I have": (
        f"{LLAMA} --weights int4 --platform strix-halo --add rtx4090",
        "rtx4090",
        1.35,
    ),
    "a third card for the draft": (f"{LARGE} --draft llama-3.2-1b", "gpus", 1.91),
    "the same with a larger draft": (f"{LARGE} --draft llama-3.2-3b", "gpus", 1.7),
    "a draft that fits only beside the card": (
        "--target qwen3-32b --weights int4 --draft qwen3-4b --draft-weights bf16 --platform rtx4090+cpu",
        "gpu",
        None,
    ),
    "an NPU with twice the bandwidth": (f"{LLAMA} --platform lunar-lake --set npu.memory_bytes_per_s=2x", "gpu", 1.35),
    "a laptop": (f"{LLAMA} --weights int4 --platform lunar-lake", "gpu", 1.35),
    "a small box": (f"{LLAMA} --weights int4 --platform dgx-spark", "gpu", 1.1),
    "a model of my own": ("--target {config} --draft qwen2.5-0.5b --platform rtx4090", "gpu", 1.5),
    "many users at once": (f"{LLAMA} --platform h200 --batch 1,8,32", "gpu", 1.36),
    "a long context": (f"{LLAMA} --platform h100x2 --context 32000", "gpus", 1.3),
}
"""Options, the lane of the recommended target, and a plausible speed-up; None where speculation cannot pay."""
QWEN25_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 28,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "model_type": "qwen2",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_in_a_line_has_a_plausible_answer_with_all_that_it_costs(question, tmp_path):
    options, target, speedup = QUESTIONS[question]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN25_7B))
    found = json_of("plan", *options.format(config=config).split())
    best = next(row for row in found["ranking"] if not row["needs_training"])
    assert best["placement"]["target"] == target
    assert found["pays"] in (("no",) if speedup is None else ("yes", "cannot_tell"))
    assert best["speedup"] == pytest.approx(1.0 if speedup is None else speedup, rel=0.15)
    assert best["memory_bytes"] > 1e9
    assert 0 < best["ttft_s"] < 3
    assert best["usd_per_million_tokens"] > 0
    assert found["tornado"]
    assert found["confirmed_by_events"]["agrees"]
    assert any(row["runs_on"] for row in found["ranking"] if row["method"] != "autoregressive")
