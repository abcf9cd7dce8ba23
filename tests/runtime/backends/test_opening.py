import pytest

from runtime.backends.lane_device import Device
from runtime.backends.opening import torch_threads


@pytest.mark.parametrize(
    ("device", "threads"), [("cpu", 6), ("openvino:CPU", 1), ("openvino:NPU", 6), ("openvino:GPU", 6), ("cuda:0", 6)]
)
def test_torch_takes_one_thread_where_graphs_have_threads_on_the_same_cores(device, threads):
    assert torch_threads(Device.of_lane(device), 6) == threads
