"""The engine on a GPU: what most people run, what somebody says, and what its curves say of a model."""

import pytest

from decoding.errors import ConfigError
from hwprofiles.engines import default_engine, engine_on, has_law, platform_run_by, priced, run_by
from hwprofiles.model_shape import model_shape
from hwprofiles.platform import load_platform
from hwprofiles.sheets import device_sheet

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
