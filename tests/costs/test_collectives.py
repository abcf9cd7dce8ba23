"""Collectives take what theory says of links that carry nothing else."""

from __future__ import annotations

import math

import pytest

from costs.group_cost import all_gather_s, all_reduce_s

LINK = {"latency_s": 0.25, "bytes_per_s": 8.0}
SIZES = [1, 2, 3, 4, 7, 8]


@pytest.mark.parametrize("num_devices", SIZES)
def test_a_ring_reduces_in_twice_n_minus_one_steps_of_an_nth_and_a_tree_up_and_down_its_levels(
    num_devices: int,
) -> None:
    share, levels = (num_devices - 1) / num_devices, math.ceil(math.log2(num_devices))
    ring_s = 2 * share * 48 / 8.0 + 2 * (num_devices - 1) * 0.25
    assert all_reduce_s(48.0, num_devices, algorithm="ring", **LINK) == pytest.approx(ring_s)
    assert all_reduce_s(48.0, num_devices, algorithm="tree", **LINK) == pytest.approx(2 * levels * (48 / 8.0 + 0.25))


@pytest.mark.parametrize("num_devices", SIZES)
def test_gathering_moves_the_shares_of_the_others(num_devices: int) -> None:
    moved_s = (num_devices - 1) / num_devices * 48 / 8.0
    latencies_s = math.ceil(math.log2(num_devices)) * 0.25
    assert all_gather_s(48.0, num_devices, **LINK) == pytest.approx(moved_s + latencies_s)


def test_a_ring_is_better_for_many_bytes_and_a_tree_for_few() -> None:
    for num_bytes, better in ((1e6, "ring"), (1.0, "tree")):
        seconds = {
            name: all_reduce_s(num_bytes, 8, latency_s=1e-5, bytes_per_s=1e9, algorithm=name)
            for name in ("ring", "tree")
        }
        assert min(seconds, key=seconds.__getitem__) == better
