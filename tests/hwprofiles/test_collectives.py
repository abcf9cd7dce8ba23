from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwprofiles.collectives import (
    all_reduce_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    tree_all_gather_s,
    tree_all_reduce_s,
)

EVERY = (ring_all_gather_s, ring_all_reduce_s, tree_all_gather_s, tree_all_reduce_s, all_reduce_s)


def test_a_ring_of_four_by_hand():
    assert ring_all_reduce_s(4e6, 4, 1e-5, 1e9) == pytest.approx(6 * (1e-5 + 1e-3), abs=1e-12)
    assert ring_all_gather_s(4e6, 4, 1e-5, 1e9) == pytest.approx(3 * (1e-5 + 1e-3), abs=1e-12)


def test_a_tree_of_eight_by_hand():
    assert tree_all_reduce_s(1e6, 8, 1e-5, 1e9) == pytest.approx(6 * (1e-5 + 1e-3), abs=1e-12)
    assert tree_all_gather_s(8e6, 8, 1e-5, 1e9) == pytest.approx(3e-5 + 7e-3, abs=1e-12)


def test_small_messages_take_the_tree_and_large_ones_the_ring():
    assert all_reduce_s(1e3, 8, 1e-5, 1e9) == tree_all_reduce_s(1e3, 8, 1e-5, 1e9)
    assert all_reduce_s(1e9, 8, 1e-5, 1e9) == ring_all_reduce_s(1e9, 8, 1e-5, 1e9)


@pytest.mark.parametrize("collective", EVERY)
def test_one_member_has_nothing_to_send(collective):
    assert collective(1e9, 1, 1e-3, 1e9) == 0


@pytest.mark.parametrize("collective", EVERY)
def test_where_nothing_is_copied_only_latency_is_left(collective):
    assert collective(1e9, 4, 1e-5, inf) == collective(0, 4, 1e-5, 1.0)


positive = st.floats(1, 1e9)


@given(st.sampled_from(EVERY), positive, st.integers(2, 64), st.floats(1e-9, 1e-2), st.floats(1e6, 1e12), positive)
def test_a_wider_or_quicker_link_and_a_smaller_message_never_take_longer(
    collective, num_bytes, members, latency_s, rate, factor
):
    here = collective(num_bytes, members, latency_s, rate)
    assert collective(num_bytes, members, latency_s, rate * factor) <= here
    assert collective(num_bytes, members, latency_s / factor, rate) <= here
    assert collective(num_bytes / factor, members, latency_s, rate) <= here
