"""Prices of rows by public curves: the nearest says most, and nothing is certain."""

import json
import re
from math import exp, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from decoding.yaml_file import load_yaml
from hwprofiles.curves.names import engine_of
from hwprofiles.curves.row_curves import PublicCurve, expert_factor
from hwprofiles.curves.row_prices import (
    AS_DENSE,
    KERNEL_STARTS_S,
    STARTS_OF_MIXTURES,
    Asked,
    reading,
    row_prices,
    starts_of_mixtures,
)
from hwprofiles.engines import (
    default_engine,
    engine_names,
    engine_on,
    loaders_on,
    platform_run_by,
    priced,
    run_by,
    splits_layers,
)
from hwprofiles.model_shape import model_shape
from hwprofiles.platform import load_platform
from hwprofiles.sheets import DeviceSheet, device_sheet, shipped_file, shipped_names
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


def _gpu(name: str) -> DeviceSheet:
    return DeviceSheet(name=name, kind="gpu")


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


def test_macs_whose_kernels_read_weights_once_a_row_are_priced_by_their_like():
    """MLX's M1 and M2 pay two thirds of a pass for every row more, M3 to M5 next to nothing for the first."""
    macs = ("M1 Ultra", "M1 Max", "M2 Max", "M4 Max", "M5 Max")
    found = {mac: row_prices(Asked.of(_gpu(f"Apple {mac}"), "mlx", "mlx-4bit", 25.6, is_mixture=False)) for mac in macs}
    four_rows = {mac: of.ratios[3] for mac, of in found.items()}
    assert min(four_rows["M1 Max"], four_rows["M2 Max"]) > 2
    assert max(four_rows["M4 Max"], four_rows["M5 Max"]) < 1.6
    error = found["M1 Ultra"].errors[3]
    assert four_rows["M1 Ultra"] * exp(-error) < 133.2 / 43.6 < four_rows["M1 Ultra"] * exp(error), "as measured"


@pytest.mark.parametrize("starts", [0.0, 0.4])
def test_a_mixture_is_priced_apart_from_the_experts_that_rows_touch(starts):
    """A curve that grows by its experts alone has no price of rows beside them, whatever starts take of its pass."""
    touched = [starts + (1 - starts) * expert_factor(rows, 0.6, 128, 8) for rows in MADE["rows"]]
    told = {"experts": 128, "per_token": 8, "expert_share": 0.6, "model": "a mixture (MoE)", "ratios": tuple(touched)}
    curve = PublicCurve(**MADE | told, starts=starts)
    found = row_prices(ASKED._replace(is_mixture=True), [curve])
    assert dict(zip(found.rows, found.ratios, strict=True))[8] == pytest.approx(1.0)
    assert row_prices(ASKED, [curve]) is None, "no dense model is priced by a mixture"


def test_engines_start_more_kernels_for_a_mixtures_layer_and_more_yet_for_linear_attention():
    starts = {
        engine: reading(Asked.of(_gpu("NVIDIA H200"), engine, "bf16", 3.0, is_mixture=True)).starts
        for engine in STARTS_OF_MIXTURES
    }
    assert all(of.at(0.0) > 1.5 for of in starts.values())
    assert starts["llama.cpp"].at(0.75) > 1.5 * starts["llama.cpp"].at(0.0)
    assert starts_of_mixtures(ASKED._replace(backend="metal")) == AS_DENSE


def test_llama_cpp_reads_a_mixture_as_it_reads_dense_models():
    """Curves of mixtures alone told it, few and old: half of the bandwidth, where dense models reach 0.8."""
    dense = PublicCurve(**MADE)
    mixture = PublicCurve(**MADE | {"model": "a mixture (MoE)", "experts": 64, "per_token": 6, "efficiency": 0.4})
    asked = ASKED._replace(is_mixture=True)
    assert reading(asked, [dense]).efficiency == pytest.approx(0.7)
    assert 0.4 < reading(asked, [dense, mixture]).efficiency < 0.7, "its own curves count too, and for more"
    elsewhere = mixture.model_copy(update={"device": "rtx3060"})
    assert reading(asked, [dense, elsewhere]).efficiency == pytest.approx(0.7), "nor do those of other devices"
    assert reading(ASKED, [dense, mixture]).efficiency == pytest.approx(0.7)
    assert reading(asked._replace(engine="vllm"), [dense, mixture]).efficiency == pytest.approx(0.4)


@pytest.mark.parametrize("wrong", [{"rows": (2, 4, 6, 8)}, {"rows": (1, 4, 2, 8)}, {"ratios": (1.0, 1.2)}])
def test_a_curve_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="rows"):
        PublicCurve(**MADE | wrong)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("NVIDIA H100 SXM", "vllm"),
        ("NVIDIA L40S", "vllm"),
        ("NVIDIA L20", "vllm"),
        ("NVIDIA A30", "vllm"),
        ("NVIDIA A2", "vllm"),
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
    assert default_engine(_gpu(name)) == engine


@pytest.mark.parametrize(
    ("name", "weights", "engine"),
    [
        ("NVIDIA GeForce RTX 4090", "awq", "vllm"),
        ("NVIDIA GeForce RTX 4090", "fp8", "vllm"),
        ("NVIDIA GeForce RTX 4090", "int4", "llama.cpp"),
        ("NVIDIA H100 SXM", "Q4_K_M", "llama.cpp"),
        ("NVIDIA H100 SXM", "nvfp4", "vllm"),
        ("Apple M4 Max", "mlx-4bit", "mlx"),
        ("Apple M4 Max", "gptq", "llama.cpp"),
        ("Qualcomm Adreno X1-85", "mlx-4bit", None),
    ],
)
def test_weights_of_an_engine_are_run_by_it_where_it_was_measured(name, weights, engine):
    assert default_engine(_gpu(name), weights) == engine


def test_files_of_llama_cpp_are_run_by_it_on_every_gpu_that_has_an_engine():
    sheets = [sheet for name in shipped_names("device") if (sheet := device_sheet(name)).kind == "gpu"]
    engines = {engine_on(sheet, "q4_k_m") for sheet in sheets if engine_on(sheet) is not None}
    assert engines == {"llama.cpp"}


@pytest.mark.parametrize("device", ["mi300x", "b200", "l40s", "mi210"])
def test_a_data_centres_rows_by_vllm_cost_what_they_cost_by_vllm_elsewhere(device):
    """Another engine's kernels for one row, on older cards of that maker, read weights again for each row."""
    prices = row_prices(Asked.of(_gpu(device), "vllm", "bf16", 8.0, is_mixture=False))
    assert "llama.cpp" not in prices.source
    assert prices.ratios[prices.rows.index(16)] < 1.1


def test_one_curve_of_an_engine_says_not_all_of_it():
    asked = Asked("mi300x", "cdna", "vllm", "rocm", "four", 8.0, is_mixture=False)
    other, own = PublicCurve(**MADE), PublicCurve(**MADE | {"engine": "vllm", "ratios": (1.0, 1.01, 1.02, 1.03)})
    alone, several = (row_prices(asked, [other, *[own] * count]).ratios[4] for count in (1, 2))
    assert several == pytest.approx(own.ratio(5))
    assert alone > several


def test_only_gpus_of_a_platform_change():
    before = load_platform("lunar-lake")
    after = platform_run_by(before, "llama.cpp")
    changed = {name for name in before.devices if before.device(name) != after.device(name)}
    assert changed == {name for name in before.devices if before.device(name).kind == "gpu"} != set()
    assert all(engine_on(after.device(name)) is None for name in set(before.devices) - changed)


def test_other_names_are_refused_with_what_there_is():
    with pytest.raises(ConfigError, match="no engine is called 'exllama'.*llama.cpp"):
        run_by(device_sheet("rtx4090"), "exllama")


@pytest.mark.parametrize(
    ("label", "engine"),
    [
        ("HF transformers 4.37", "transformers"),
        ("Hugging Face", "transformers"),
        ("PyTorch 2.0.1", "transformers"),
        ("Medusa (transformers)", "transformers"),
        ("EAGLE-2, the authors' own code", "transformers"),
        ("PEARL", "transformers"),
        ("the EAGLE-2 repository", "transformers"),
        ("lucebox EAGLE-3", None),
        ("nano-PEARL", "vllm"),
        ("SGLang EAGLE", "vllm"),
        ("minisglang ROCm, eager when it speculates", "vllm"),
        ("llama.cpp lookahead", "llama.cpp"),
        ("gpt-fast (PyTorch)", None),
        ("Hugging Face TGI 3.0", None),
        ("Huggingface text-generation-inference", None),
        ("transformers.js", None),
        ("transformers with torch.compile", None),
        ("onnx-genai, its own CUDA provider", None),
    ],
)
def test_code_that_python_starts_operation_by_operation_is_told_by_its_name(label, engine):
    assert engine_of(label) == engine


@pytest.mark.parametrize(
    ("device", "engine"),
    [
        ("m4-max-gpu", "llama.cpp cuda"),
        ("rtx4090", "llama.cpp Metal"),
        ("rtx4090", "vllm rocm"),
        ("mi300x", "mlx"),
        ("p40", "sglang"),
        ("m40", "vllm"),
    ],
)
def test_a_back_end_of_other_makers_gpus_is_refused(device, engine):
    with pytest.raises(ConfigError, match=f"runs on GPUs (of|from) .*, not on {device_sheet(device).name[:5]}"):
        run_by(device_sheet(device), engine)
    assert run_by(device_sheet(device), "llama.cpp vulkan").engine == "llama.cpp vulkan"


@pytest.mark.parametrize("engine", ["llama.cpp", "llama.cpp vulkan", "Ollama", "ik_llama.cpp", "mlx", "vllm cuda"])
@pytest.mark.parametrize("device", ["gaudi3", "tpu-v6e", "trainium2"])
def test_an_engine_without_kernels_for_an_accelerator_is_refused(device, engine):
    with pytest.raises(ConfigError, match=f"{re.escape(engine.split()[-1])} runs on GPUs .*, not on"):
        run_by(device_sheet(device), engine)
    assert run_by(device_sheet(device), "vllm").engine == "vllm"


@pytest.mark.parametrize(
    ("engine", "splits"),
    [
        *[(name, True) for name in ("llama.cpp vulkan", "llama-server", "LM Studio", "ollama", "koboldcpp")],
        *[(name, False) for name in ("ik_llama.cpp", "vllm", "transformers")],  # a fork's options are its own
    ],
)
def test_layers_are_split_by_llama_cpp_whatever_it_is_called(engine, splits):
    assert splits_layers(run_by(device_sheet("rtx3090"), engine), "bf16") == splits


@pytest.mark.parametrize(
    ("name", "too_old"),
    [
        ("NVIDIA Tesla K80", True),
        ("NVIDIA Quadro M6000", True),
        ("NVIDIA GeForce GTX 980 Ti", True),
        ("NVIDIA GTX Titan X", True),
        ("NVIDIA Quadro P5000", True),
        ("NVIDIA GeForce GT 1030", True),
        ("NVIDIA Titan V", False),
        ("NVIDIA Quadro GV100", False),
        ("NVIDIA GeForce GTX 1660 Super", False),
        ("NVIDIA B100", False),
        ("Apple M4 Max GPU", False),
    ],
)
def test_vllm_has_no_kernels_for_gpus_before_volta(name, too_old):
    assert _gpu(name).before_volta == too_old


@pytest.mark.parametrize("name", shipped_names("device"))
def test_what_a_device_is_called_changes_no_answer(name):
    """An RTX 4090 called "My card" was priced by vLLM's kernels, and then said to be run by llama.cpp alone."""
    known = device_sheet(name)
    called = load_yaml(shipped_file("device", name), dict[str, Any]) | {"name": "My device"}
    other, shape = DeviceSheet.model_validate(called), model_shape("qwen3-8b")
    assert (other.maker, other.before_volta) == (known.maker, known.before_volta)
    for weights in ("bf16", "q4_k_m", "fp8"):
        for mine, theirs in (
            (known, other),
            tuple(one.model_copy(update={"engine": "vllm"}) for one in (known, other)),
        ):
            assert engine_on(mine, weights) == engine_on(theirs, weights)
            assert priced(mine, shape, weights) == priced(theirs, shape, weights)
            assert loaders_on(mine, weights) == loaders_on(theirs, weights)


def test_one_chip_of_a_maker_is_no_back_end():
    """ "AWS Trainium2 (one chip)" was priced by curves of HIP."""
    assert Asked.of(device_sheet("trainium2"), "vllm", "bf16", 8.0, is_mixture=False).backend == "cuda"


def test_every_engine_that_an_error_names_is_taken():
    assert {run_by(device_sheet("rtx4090"), engine).engine for engine in engine_names()} == set(engine_names())


def test_starts_are_near_the_best_of_those_tried_on_devices_left_out():
    found = json.loads((RESULTS / "row-curves.json").read_text())
    for name, errors in found["starts_tried"].items():
        assert errors[f"{1e6 * KERNEL_STARTS_S[name]:g}"] <= min(errors.values()) + 0.02
    for name, tried in found["starts_of_mixtures_tried"].items():
        for field, errors in tried.items():
            shipped, worst = errors[f"{getattr(STARTS_OF_MIXTURES[name], field):g}"], 0.0 if name == "vllm" else 0.04
            assert shipped <= min(errors.values()) + worst, field
