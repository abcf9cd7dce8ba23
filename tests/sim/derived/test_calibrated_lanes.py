"""What the lanes of an imported engine run on, by the device that its files name."""

from types import SimpleNamespace

import pytest

from sim.derived.calibrated_lanes import _kind


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("NVIDIA A999 Tensor Core GPU", "gpu"),
        ("Apple M9 GPU 20-core", "gpu"),
        ("the device", "gpu"),
        ("Intel(R) Core(TM) i9-99999", "cpu"),
        ("AMD Zen 9 64-Core Processor", "cpu"),
    ],
)
def test_a_gpu_that_counts_its_cores_is_no_cpu(label, kind):
    assert _kind(SimpleNamespace(name="engine", device=label), SimpleNamespace(host={"engine": "llama.cpp"})) == kind
