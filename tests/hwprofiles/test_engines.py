"""What further rows cost by engine: medians of public curves, laid over the sheets of GPUs."""

import json

import pytest

from decoding.errors import ConfigError
from hwprofiles.engines import engines, platform_run_by, run_by
from hwprofiles.platform import load_platform
from hwprofiles.sheets import device_sheet
from tests.benchmarks.scripts import RESULTS

CURVES = json.loads((RESULTS / "row-growth.json").read_text())
MEASURED = [(engine, weights) for engine, formats in CURVES["growth"].items() for weights in formats]


@pytest.mark.parametrize(("engine", "weights"), MEASURED)
def test_an_engine_has_the_median_of_its_curves_and_their_range_or_a_factor_of_two(engine, weights):
    told, found = engines()[engine][weights], CURVES["growth"][engine][weights]
    low, high = found["low"], found["high"]
    if found["num_curves"] == 1:
        low, high = low / 2, high * 2
    assert told.value == pytest.approx(found["value"], rel=0.02)
    assert told.span == pytest.approx((low, high), rel=0.05)
    assert f"{found['num_curves']} public curve" in told.source
    assert told.status == "measured"


def test_nothing_is_told_of_an_engine_that_no_curve_is_of():
    assert {(engine, weights) for engine, formats in engines().items() for weights in formats} == set(MEASURED)


def test_an_engine_replaces_what_is_guessed_and_what_others_kernels_took():
    assert run_by(device_sheet("m4-max-gpu"), "llama.cpp", "int4").growth_per_row.value == 0.151
    by_llama = run_by(device_sheet("h100-sxm"), "llama.cpp", "int4")
    assert (by_llama.kernel_start_s, by_llama.unhidden_share) == (None, None)
    assert run_by(device_sheet("h100-sxm"), "vllm", "bf16") == device_sheet("h100-sxm")


def test_what_was_measured_on_the_device_itself_with_that_engine_stands():
    own = device_sheet("rtx4090")
    assert run_by(own, "llama.cpp", "bf16") == own
    assert run_by(own, "vllm", "bf16").growth_per_row == engines()["vllm"]["bf16"]


def test_only_gpus_of_a_platform_change():
    before = load_platform("lunar-lake")
    after = platform_run_by(before, "llama.cpp", "int4")
    changed = {name for name in before.devices if before.device(name) != after.device(name)}
    assert changed == {name for name in before.devices if before.device(name).kind == "gpu"} != set()


def test_other_names_and_weights_are_refused_with_what_there_is():
    with pytest.raises(ConfigError, match="no engine is called 'ollama'; there are llama.cpp, mlx, vllm"):
        run_by(device_sheet("rtx4090"), "ollama", "bf16")
    with pytest.raises(ConfigError, match="nobody measured what rows of mlx cost in bf16; there is int4"):
        run_by(device_sheet("m4-max-gpu"), "mlx", "bf16")
