"""Prices of rows by public curves: the nearest says most, and nothing is certain."""

import json
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from hwprofiles.curves.names import backend_of, device_key, engine_of, family_of, weights_class
from hwprofiles.curves.row_curves import PublicCurve, expert_factor, read_curves
from hwprofiles.curves.row_prices import KERNEL_STARTS_S, Asked, reading, row_prices, source_errors
from hwprofiles.engines import default_engine, engine_on, has_law, platform_run_by, priced, run_by
from hwprofiles.model_shape import model_shape
from hwprofiles.platform import load_platform
from hwprofiles.sheets import device_sheet
from tests.benchmarks.scripts import RESULTS

MADE = {
    "device": "rtx3090",
    "family": "ampere",
    "engine": "llama.cpp",
    "backend": "cuda",
    "weights": "four",
    "stored": "Q4_0",
    "model": "llama 8B",
    "billions": 8.0,
    "context": "pp512",
    "rows": (1, 2, 4, 8),
    "ratios": (1.0, 1.2, 1.6, 2.4),
    "one_row_s": 0.006,
    "efficiency": 0.7,
    "source": "somebody#1",
    "date": "2026-09",
}
ASKED = Asked("rtx3090", "ampere", "llama.cpp", "cuda", "four", 8.0, is_mixture=False)


@pytest.mark.parametrize(
    ("label", "key", "family"),
    [
        ("2x RTX 5060 Ti, tensor split", "rtx5060ti", "blackwell"),
        ("Radeon 8060S (Strix Halo), Windows", "8060s", "rdna3"),
        ("AMD Strix Halo GPU", "8060s", "rdna3"),
        ("DGX Spark GB10", "gb10", "blackwell"),
        ("NVIDIA A100 80 GB SXM", "a100", "ampere"),
        ("Apple M4 Max, 128 GB", "m4max", "apple"),
        ("RTX PRO 6000 Blackwell Max-Q", "rtxpro6000", "blackwell"),
        ("Radeon 780M", "780m", "rdna3"),
        ("Apple Neural Engine", "appleneuralengine", None),
    ],
)
def test_labels_of_a_device_have_one_name_and_its_architecture(label, key, family):
    assert (device_key(label), family_of(device_key(label))) == (key, family)


@pytest.mark.parametrize(
    ("label", "engine"),
    [
        ("llama.cpp Vulkan", "llama.cpp"),
        ("vLLM 0.27.1 NVFP4", "vllm"),
        ("oMLX", "mlx"),
        ("LM Studio MLX", "mlx"),
        ("LM Studio", "llama.cpp"),
        ("vllm-mlx", "mlx"),
        ("SGLang", "vllm"),
        ("ds4", None),
    ],
)
def test_engines_go_by_one_name(label, engine):
    assert engine_of(label) == engine


def test_weights_go_by_the_kernels_that_read_them():
    names = {
        "q4_k_m": "four",
        "iq1_kt": "codebook",
        "nvfp4": "fp4",
        "q3_k_xl": "low",
        "bf16": "sixteen",
        "fp8": "eight",
    }
    assert {name: weights_class(name) for name in names} == names
    assert backend_of("llama.cpp HIP", "8060s") == "rocm"


@given(rows=st.floats(1, 64), share=st.floats(0, 1), per_token=st.integers(1, 8))
def test_rows_read_no_fewer_experts_than_one_and_no_more_than_there_are(rows, share, per_token):
    factor = expert_factor(rows, share, 64, per_token)
    assert 1 - 1e-9 <= factor <= 1 - share + share * min(rows, 64 / per_token) + 1e-9


def test_a_curve_of_the_very_question_is_the_answer_alone():
    found = row_prices(ASKED, [PublicCurve(**MADE)])
    assert found.step == "device"
    assert dict(zip(found.rows, found.ratios, strict=True))[8] == pytest.approx(2.4)
    assert dict(zip(found.rows, found.ratios, strict=True))[3] == pytest.approx(1.4)
    assert found.rows[-1] == 8, "nothing is told beyond measured rows"


@given(st.floats(1.1, 5.0), st.floats(1.1, 5.0))
def test_answers_lie_between_the_curves_and_nearer_to_the_nearer_one(near, far):
    own = PublicCurve(**MADE | {"rows": (1, 8), "ratios": (1.0, near)})
    other = PublicCurve(**MADE | {"rows": (1, 8), "ratios": (1.0, far), "device": "rtx4090", "family": "ada"})
    found = log(row_prices(ASKED, [own, other]).ratios[-1])
    assert min(log(near), log(far)) - 1e-9 <= found <= max(log(near), log(far)) + 1e-9
    assert abs(found - log(near)) <= abs(found - log(far)) + 1e-9


@pytest.mark.parametrize(
    ("changed", "step"),
    [
        ({}, "device"),
        ({"weights": "eight"}, "device otherwise"),
        ({"backend": "vulkan"}, "device otherwise"),
        ({"device": "a10"}, "family"),
        ({"device": "rtx4090", "family": "ada"}, "engine"),
        ({"engine": "vllm"}, "others"),
    ],
)
def test_every_step_away_says_so_and_its_error_is_the_measured_one(changed, step):
    assert row_prices(ASKED, [PublicCurve(**MADE | changed)]).step == step
    assert reading(ASKED, [PublicCurve(**MADE | changed)]).step == step
    assert [one.rows for one in source_errors().values()] == sorted(one.rows for one in source_errors().values())


def test_shipped_curves_answer_what_they_measured_within_their_error():
    """Of a device that has one curve of its kind; others have a say too, as LOO found best."""
    curve = next(one for one in read_curves() if (one.device, one.model) == ("8060s", "Qwen3.8-27B"))
    asked = Asked.of("AMD Strix Halo", "llama.cpp vulkan", "q4_k_m", curve.billions, is_mixture=False)
    found = row_prices(asked)
    assert found.step == "device"
    for rows, ratio, error in zip(found.rows, found.ratios, found.errors, strict=True):
        if rows in curve.rows:
            assert ratio * exp(-error) <= curve.ratio(rows) <= ratio * exp(error)


def test_a_mixture_is_priced_apart_from_the_experts_that_rows_touch():
    touched = [expert_factor(rows, 0.6, 128, 8) for rows in MADE["rows"]]
    told = {"experts": 128, "per_token": 8, "expert_share": 0.6, "model": "a mixture (MoE)", "ratios": tuple(touched)}
    found = row_prices(ASKED._replace(is_mixture=True), [PublicCurve(**MADE | told)])
    assert dict(zip(found.rows, found.ratios, strict=True))[8] == pytest.approx(1.0)
    assert row_prices(ASKED, [PublicCurve(**MADE | told)]) is None, "no dense model is priced by a mixture"


@pytest.mark.parametrize("wrong", [{"rows": (2, 4, 6, 8)}, {"rows": (1, 4, 2, 8)}, {"ratios": (1.0, 1.2)}])
def test_a_curve_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="rows"):
        PublicCurve(**MADE | wrong)


LLAMA = model_shape("llama-3.1-8b")


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("NVIDIA H100 SXM", "vllm"),
        ("NVIDIA L40S", "vllm"),
        ("AMD MI300X", "vllm"),
        ("NVIDIA GeForce RTX 5090", "llama.cpp"),
        ("Apple M4 Max", "llama.cpp"),
        ("AMD Radeon RX 7900 XTX", "llama.cpp"),
        ("Intel Arc B580", "llama.cpp"),
        ("Intel Lunar Lake GPU (Arc 140V)", None),
        ("Qualcomm Adreno X1-85", None),
    ],
)
def test_the_default_is_what_most_people_run_there(name, engine):
    assert default_engine(name) == engine


def test_a_kernel_law_stands_with_the_engine_that_it_is_of():
    own = device_sheet("h100-sxm")
    assert has_law(own)
    assert priced(own, LLAMA, "bf16") is None
    by_llama = run_by(own, "llama.cpp")
    assert not has_law(by_llama)
    assert priced(by_llama, LLAMA, "bf16").engine == "llama.cpp"


def test_an_engine_changes_what_rows_cost():
    card = device_sheet("rtx3090")
    by_vllm, by_llama = (
        priced(run_by(card, engine), LLAMA, "q4_k_m").rows.ratios[5] for engine in ("vllm", "llama.cpp")
    )
    assert by_vllm < by_llama


def test_only_gpus_of_a_platform_change():
    before = load_platform("lunar-lake")
    after = platform_run_by(before, "llama.cpp")
    changed = {name for name in before.devices if before.device(name) != after.device(name)}
    assert changed == {name for name in before.devices if before.device(name).kind == "gpu"} != set()
    assert all(engine_on(after.device(name)) is None for name in set(before.devices) - changed)


def test_other_names_are_refused_with_what_there_is():
    with pytest.raises(ConfigError, match="no engine is called 'torch'.*llama.cpp"):
        run_by(device_sheet("rtx4090"), "torch")


@pytest.mark.parametrize(
    ("device", "engine", "start_us"),
    [
        ("Apple M2 Ultra", "llama.cpp", 18),
        ("Apple M2 Ultra", "mlx", 10),
        ("MI300X", "llama.cpp", 12),
        ("MI300X", "vllm", 7),
    ],
)
def test_kernels_start_as_their_engine_or_back_end_starts_them(device, engine, start_us):
    found = reading(Asked.of(device, engine, "q4_0", 7.0, is_mixture=False))
    assert found.kernel_start_s == pytest.approx(start_us * 1e-6)


def test_starts_are_near_the_best_of_those_tried_on_devices_left_out():
    tried = json.loads((RESULTS / "row-curves.json").read_text())["starts_tried"]
    for name, errors in tried.items():
        assert errors[f"{1e6 * KERNEL_STARTS_S[name]:g}"] <= min(errors.values()) + 0.02
