"""Some size holds every sequence, and none is much larger than what it holds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.backends.lane_device import Device

SPARE = {"openvino:CPU": 33, "openvino:NPU": 1, "cuda:0": 128}


@pytest.mark.parametrize(("lane", "spare"), SPARE.items())
@given(count=st.integers(0, 20_000))
def test_slots_hold_a_sequence_and_the_rows_that_fill_up_its_calls(lane, spare, count):
    device = Device.of_lane(lane)
    size, sizes = device.num_slots(count), device.slot_sizes(count)
    assert size >= count + spare == count + device.spare_slots
    assert size == sizes[-1]
    assert all(device.num_slots(one - spare) == one and device.num_slots(one - spare + 1) > one for one in sizes)


@given(count=st.integers(0, 20_000))
def test_what_is_compiled_anew_doubles_and_all_else_has_a_size_halfway(count):
    doubling = Device.of_lane("openvino:NPU").slot_sizes(count)
    halves = Device.of_lane("openvino:CPU").slot_sizes(count)
    assert doubling[0] == halves[0] == 256
    assert all(after == 2 * before for before, after in pairwise(doubling))
    assert set(doubling) >= {size for size in halves if size.bit_count() == 1}
    assert all(4 * before <= 3 * after <= 4.5 * before for before, after in pairwise(halves))


def test_torch_looks_at_what_is_there():
    assert Device.of_lane("cpu0").num_slots(777) == 777
