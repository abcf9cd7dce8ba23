"""Public measurements of speculation, predicted: what is asked, what an answer is made of, and what is refused."""

import json
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from planner.platform_plan.advice import ACCURACY
from planner.retrodict.case_machine import case_machine
from planner.retrodict.cases import Case, load_cases
from planner.retrodict.drafters import (
    accepted,
    draft_of,
    rate_of_tokens,
    tokens_in_parallel,
    tokens_of_rate,
    usual_rate,
)
from planner.retrodict.predicted_speeds import PredictedCase
from planner.retrodict.retrodiction import retrodict
from planner.row_curve import pass_s
from tests.benchmarks.scripts import RESULTS, load_script

SCRIPT = load_script("retrodictions")
CASES = SCRIPT.CASES
COLUMNS = json.loads((RESULTS / "retrodictions.json").read_text())["columns"]
KINDS = ("mtp", "draft", "dflash", "ngram", "eagle3", "medusa")
TOLD = {
    "id": "a card",
    "device": "RTX 3090",
    "engine": "llama.cpp CUDA",
    "target": {"shape": "qwen3.8-27b", "weights": "q4_k_m"},
    "drafter": {"kind": "mtp"},
    "plain_tokens_per_s": 40.0,
    "accepted_share": {2: 0.8, 4: 0.6},
    "published_tokens_per_s": {2: 70.0, 4: 72.0},
}


def case(**changed) -> Case:
    return Case.model_validate(TOLD | changed)


@pytest.mark.parametrize(
    ("label", "engine", "name", "devices", "together"),
    [
        ("2x RTX 5060 Ti, tensor split", "llama.cpp CUDA", "NVIDIA GeForce RTX 5060 Ti (16 GB)", 2, 2),
        ("2x RTX 3090, layer split", "llama.cpp", "NVIDIA GeForce RTX 3090", 2, 1),
        ("8x B300", "vLLM 0.28.1", "NVIDIA B300 (HGX)", 8, 8),
        ("NVIDIA A100 PCIe 40GB", "vLLM", "NVIDIA A100 (PCIe, 40 GB)", 1, 1),
        ("A100 80GB", "vLLM", "NVIDIA A100 80 GB SXM", 1, 1),
        ("RTX 5090 at 400 W", "llama.cpp", "NVIDIA GeForce RTX 5090", 1, 1),
        ("2x RTX 5090 32GB (TP)", "llama.cpp CUDA", "NVIDIA GeForce RTX 5090", 2, 2),
        ("RTX 5080 16GB + RTX 3090 24GB (TP)", "llama.cpp", "NVIDIA GeForce RTX 3090", 2, 2),
        ("MacBook Pro M3 Max", "MLX", "Apple M3 Max GPU (40 cores)", 1, 1),
        ("Radeon 8060S (Strix Halo), Windows", "llama.cpp Vulkan", "AMD Ryzen AI Max GPU (Radeon 8060S)", 1, 1),
    ],
)
def test_a_label_means_a_machine(label, engine, name, devices, together):
    found = case_machine(label, engine)
    assert (found.sheet.name, found.num_devices, found.num_together) == (name, devices, together)
    assert found.sheet.engine == engine
    assert not found.is_stand_in


def test_a_card_without_a_sheet_is_told_by_its_architecture_in_ratios_alone():
    found = retrodict([case(device="CMP 50HX")])
    assert {one.question for one in found.found} == {"ratio"}
    assert {one.question for one in found.skipped} == {"absolute", "plain"}


@pytest.mark.parametrize(
    ("label", "is_throttled"),
    [("RTX 5090 600 W", False), ("RTX 5090 400 W", True), ("RTX 4090 Laptop", False), ("RTX 4080 Laptop", True)],
)
def test_fewer_watts_than_a_card_is_made_for_are_told(label, is_throttled):
    assert case_machine(label, "llama.cpp").is_throttled is is_throttled


def test_a_card_holds_as_much_as_its_label_says():
    """In GB of 2**30 bytes, and of cards with more memory than they are sold with."""
    small, large = (
        PredictedCase.of(case(device=f"RTX 4090 {size}GB", target={"shape": "qwen3-32b", "weights": "q8_0"}))
        for size in (24, 48)
    )
    assert large.fits
    assert not small.fits


def test_a_server_that_says_nothing_runs_what_was_released():
    told = {"engine": "vLLM", "device": "8x H200", "target": {"shape": "deepseek-ai/DeepSeek-R1"}}
    found = PredictedCase.of(case(**told))
    assert found.target.weights == "fp8"
    assert {one.question for one in retrodict([case(**told)]).found} == {"ratio", "absolute", "plain"}


def test_rows_on_a_cpu_cost_what_curves_of_cpus_say():
    """Four-bit kernels there are bound by computing early: 2.3 to 4.3 times for eight rows on Xeons."""
    found = PredictedCase.of(case(device="Intel Xeon E5-2683 v4", engine="llama.cpp"))
    assert found.cost.device.growth(8) > 1.5


@pytest.mark.parametrize(
    ("device", "model", "weights", "tokens_per_s"),
    [
        ("A100 80GB", "qwen3-30b-a3b", "bf16", 104),
        ("A100 80GB", "gpt-oss-120b", "mxfp4", 90),
        ("H100", "glm-4.7-flash", "bf16", 122),
    ],
)
def test_mixtures_of_experts_have_no_kernel_law(device, model, weights, tokens_per_s):
    """By vLLM: their kernels read at a half of what dense products do, by which they were 1.5 to 2.2 times too fast."""
    found = PredictedCase.of(case(device=device, engine="vLLM", target={"shape": model, "weights": weights}))
    assert found.cost.device.unhidden_share is None
    plain = found.plain(512)
    assert plain.low < tokens_per_s < plain.high


def test_the_host_is_counted_once():
    """Curves of whole passes have it in them, a kernel law as the engine's step."""
    by_curves, by_law = (
        PredictedCase.of(case(device=name, engine=engine, target={"shape": "qwen3-8b", "weights": "bf16"}))
        for name, engine in (("RTX 3090", "llama.cpp"), ("H100", "vLLM"))
    )
    for found in (by_curves, by_law):
        assert found.plain_s(512) == pass_s(found.cost, 1, 512)


def test_settings_are_drafted_tokens_or_contexts():
    by_context = case(plain_tokens_per_s={4096: 36.0}, published_tokens_per_s={4096: 56.0}, drafted=3)
    (one,) = by_context.measured
    assert (one.drafted, one.context, one.plain, one.share) == (3, 4096, 36.0, None)
    two, four = case().measured
    assert (two.drafted, two.share, four.drafted, four.share, four.plain) == (2, 0.8, 4, 0.6, 40.0)
    (named,) = case(published_tokens_per_s={"K=3": 50.0, "K=5": None}).measured
    assert (named.key, named.drafted) == ("K=3", 3)
    (auto,) = case(published_tokens_per_s={"auto": 50.0}).measured
    assert not auto.is_drafted_known


@given(plain=st.floats(1, 500), share=st.floats(0, 1), drafted=st.integers(1, 12))
def test_a_ratio_is_at_most_the_tokens_of_its_round(plain, share, drafted):
    asked = case(plain_tokens_per_s=plain, accepted_share={drafted: share}, published_tokens_per_s={drafted: plain})
    (one,) = asked.measured
    found = PredictedCase.of(asked).ratio(one)
    assert 0 < found.low < found.value < found.high
    assert found.value <= 1 + share * drafted
    assert log(found.high / found.value) == pytest.approx(log(found.value / found.low))


@given(rate=st.floats(0.01, 0.99), drafted=st.integers(1, 16))
def test_tokens_of_a_rate_are_leviathans(rate, drafted):
    assert tokens_of_rate(rate, drafted) == pytest.approx((1 - rate ** (drafted + 1)) / (1 - rate))


def test_drafters_take_what_they_compute():
    target = PredictedCase.of(case()).target
    of = {kind: draft_of(case(drafter={"kind": kind, "shape": "qwen3-0.6b"}).drafter, target) for kind in KINDS}
    assert of["mtp"].num_steps(4) == of["draft"].num_steps(4) == 4
    assert of["dflash"].num_steps(4) == of["medusa"].num_steps(4) == 1
    assert of["ngram"].step_bytes == of["ngram"].num_steps(4) == 0
    assert of["eagle3"].step_bytes < of["mtp"].step_bytes < of["dflash"].step_bytes
    assert accepted(of["mtp"], 4, 0.5).tokens == 3
    assert accepted(of["mtp"], 4, None).error > accepted(of["mtp"], 4, 0.5).error


def test_nothing_given_is_less_certain_than_plain_speed_given():
    found = {(one.question, one.drafted): one.predicted for one in retrodict([case()]).found}
    ratio, absolute = (found[question, "2"] for question in ("ratio", "absolute"))
    assert absolute.high / absolute.low > ratio.high / ratio.low


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"device": "abacus"}, "no device that ships is called 'abacus'"),
        ({"target": {"shape": "hybrid", "weights": "q4_0"}}, "no model shape is called 'hybrid'"),
        ({"target": {"shape": "qwen3-8b", "weights": "q4_z"}}, "no weight format is called 'q4_z'"),
        ({"drafter": {"kind": "oracle"}}, "nobody knows what a drafter of kind 'oracle' takes"),
        ({"drafter": {"kind": "draft"}}, "the case names no draft model"),
        ({"plain_tokens_per_s": None}, "no plain speed is given"),
        ({"published_tokens_per_s": None}, "no speed of speculation is given"),
    ],
)
def test_what_cannot_be_predicted_is_listed_with_the_reason(changed, reason):
    found = retrodict([case(**changed)])
    summary = found.summary()["skipped"]
    assert summary["count"] == len(summary["cases"]) > 0
    assert any(reason in one["reason"] for one in summary["cases"])


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "cases.yaml"
    path.write_text("cases:\n- id: 1\n")
    with pytest.raises(ConfigError, match=r"cases\.yaml:2.*id"):
        load_cases(path)


def test_known_cases_are_predicted_better_than_by_anybodys_predictors():
    """In-sample: the 18 cases were known when their predictor was built."""
    told = retrodict(load_cases(CASES)).summary()
    assert told["ratio"]["num"] == 34
    assert told["ratio"]["median_abs_error"] <= 0.1
    assert 0.75 <= told["ratio"]["coverage"] <= 0.97
    assert all(2 * told["ratio"]["median_abs_error"] < one["ratio"] for one in told["baselines"].values())


@pytest.mark.parametrize("name", ["in-sample", "blind"])
def test_what_is_stored_of_predictions_is_todays(name):
    """Who changes a prediction on purpose runs benchmarks/retrodictions.py, and says in the commit what happened."""
    cases = load_cases(CASES) if name == "in-sample" else SCRIPT.half("blind")
    assert retrodict(cases).summary()["ratio"] == pytest.approx(COLUMNS[name]["summary"]["ratio"])


def test_what_a_plan_says_of_such_predictions_is_the_blind_result():
    told = COLUMNS["blind"]["summary"]["ratio"]
    errors, held = (f"{100 * told[name]:.0f} %" for name in ("median_abs_error", "coverage"))
    assert f"{errors} off in the median of {told['num']}, and {held} inside their intervals" in ACCURACY
    assert not {one["id"] for one in COLUMNS["seen"]["cases"]} & {one["id"] for one in COLUMNS["blind"]["cases"]}


def test_a_draft_that_runs_ahead_loses_what_it_drafted_after_a_refusal():
    assert tokens_in_parallel(0.8, 5) == pytest.approx(2.19, abs=0.01), "PEARL's formula, worked out by others"
    assert tokens_in_parallel(1.0, 5) == 5
    assert tokens_in_parallel(0.0, 5) == 1


@pytest.mark.parametrize("kind", ["mtp", "eagle", "block", "draft"])
def test_a_usual_acceptance_is_that_of_its_sources(kind):
    several, single = usual_rate(kind), usual_rate(kind, is_single=True)
    assert 0.5 < several.low < several.value < several.high < 0.95
    assert single.value >= several.value, "later tokens are drafted from the drafter's own states"


@given(rate=st.floats(0.01, 0.99), drafted=st.integers(1, 16))
def test_a_rate_makes_the_tokens_that_tell_it(rate, drafted):
    assert rate_of_tokens(tokens_of_rate(rate, drafted), drafted) == pytest.approx(rate, abs=1e-4)


@pytest.mark.parametrize(("engine", "stored"), [("oMLX", "mlx-mxfp4"), ("ds4", "mxfp4_moe"), ("vLLM 0.27", "mxfp4")])
def test_a_name_of_weights_means_the_files_of_its_engine(engine, stored):
    asked = case(device="Apple M3 Ultra", engine=engine, target={"shape": "glm-5.2", "weights": "MXFP4"})
    assert PredictedCase.of(asked).target.weights == stored
