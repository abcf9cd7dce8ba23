"""Whatever number of rows and slots there is, some graph serves it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runtime.backends.openvino.buckets import pieces, row_bucket, slot_bucket, slot_buckets


@given(st.integers(1, 2000))
def test_a_graph_has_the_rows_asked_for_and_the_slots_with_one_to_spare(count) -> None:
    assert row_bucket(count) >= count
    assert slot_bucket(count) > count
    assert row_bucket(row_bucket(count)) == row_bucket(count)


@given(st.integers(0, 5000))
def test_a_text_passes_through_every_doubling(count) -> None:
    sizes = slot_buckets(count)
    assert (sizes[0], sizes[-1]) == (256, slot_bucket(count))
    assert all(after == 2 * before for before, after in pairwise(sizes))


@given(st.integers(0, 700), st.sets(st.integers(1, 80), min_size=1, max_size=5))
def test_pieces_are_all_rows_in_order_and_each_has_a_graph(num_rows, sizes) -> None:
    found = list(pieces(num_rows, sizes))
    assert [row for start, stop in found for row in range(start, stop)] == list(range(num_rows))
    assert all(0 < stop - start <= max(sizes) for start, stop in found)


def test_a_window_is_one_call_and_a_prompt_is_not_filled_up_to_twice_its_rows() -> None:
    assert list(pieces(5, {1, 5, 16, 64})) == [(0, 5)]
    assert list(pieces(3, {1, 5, 16, 64})) == [(0, 3)]
    assert list(pieces(7, {1, 5, 16, 64})) == [(0, 7)]
    assert list(pieces(150, {1, 5, 16, 64})) == [(0, 64), (64, 128), (128, 144), (144, 150)]
