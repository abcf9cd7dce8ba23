"""CPUs of Apple's chips read weights at rates of their own, far below the memory's, and pay for each kernel."""

import pytest

from hwprofiles.model_shape import model_shape
from hwprofiles.sheets import device_sheet
from mirrorsd.pair_on_platform import plan_pair
from planner.row_curve import row_curve
from sim.derived.roofline import StoredModel


@pytest.mark.parametrize(
    ("chip", "model", "weights", "published_s"),
    [
        ("m1", "llama-2-7b", "q4_0", 0.0712),
        ("m1-pro", "llama-2-7b", "q4_0", 0.0430),
        ("m2-ultra", "mistral-7b", "q8_0", 1 / 27),
    ],
)
def test_llama_cpp_on_the_cpu_takes_what_was_measured(chip, model, weights, published_s):
    """ggml-org/llama.cpp#1642 and justine.lol/matmul, which the sheets are from."""
    name = f"{chip}-cpu"
    curve = row_curve(StoredModel(shape=model_shape(model), weights=weights), name, device_sheet(name), (1,), 64)
    assert curve.rows[0].time_s == pytest.approx(published_s, rel=0.02)


@pytest.mark.parametrize("machine", ["m1-max", "m2-ultra", "m4-max", "m3-ultra"])
def test_a_mixture_is_decoded_on_the_gpu_of_a_large_mac(machine):
    plan = plan_pair("qwen3-30b-a3b", "qwen3-0.6b", machine, lengths=(64, 32))
    plain = {one.pair.target: one.tpot_s for one in plan.ranking if not one.schedule.draft_lane}
    assert min(plain, key=plain.get) == "gpu"
    assert plain["cpu"] > 1.3 * plain["gpu"]
