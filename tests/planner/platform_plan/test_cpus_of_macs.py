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


def test_a_mixture_takes_the_gpu_of_an_m1_max_what_was_measured():
    """19.7 ms (carecodeconnect/pi_qwen, docs/05-benchmarking.md), so it is less far ahead of the CPU than of others."""
    model = StoredModel(shape=model_shape("qwen3-30b-a3b"), weights="q5_k_m")
    curve = row_curve(model, "m1-max-gpu", device_sheet("m1-max-gpu"), (1,), 64)
    assert curve.rows[0].time_s == pytest.approx(0.0197, rel=0.1)


@pytest.mark.parametrize(("machine", "lead"), [("m1-max", 1.3), ("m2-ultra", 1.4), ("m4-max", 1.4), ("m3-ultra", 1.4)])
def test_a_mixture_is_decoded_on_the_gpu_of_a_large_mac(machine, lead):
    plan = plan_pair("qwen3-30b-a3b", "qwen3-0.6b", machine, lengths=(64, 32))
    plain = {one.pair.target: one.tpot_s for one in plan.ranking if not one.schedule.draft_lane}
    assert min(plain, key=plain.get) == "gpu"
    assert plain["cpu"] > lead * plain["gpu"]
