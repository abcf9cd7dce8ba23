"""Whatever number of rows and slots there is, some graph serves it."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.backends.openvino.buckets import (
    COPIES_BYTES,
    SEVERAL_TEXTS,
    SINGLE_ROW,
    pieces,
    row_bucket,
    size_of_copy,
    sizes_with_copies,
)


@given(st.integers(1, 2000))
def test_a_graph_has_the_rows_asked_for(count):
    assert row_bucket(count) >= count
    assert row_bucket(row_bucket(count)) == row_bucket(count)


@given(st.integers(2, 200), st.integers(2, 200))
def test_a_small_decoder_has_a_copy_for_every_number_of_rows_and_of_few_texts_and_one_for_more(rows, texts):
    for num_copies, few in ((8, 4), (16, 8), (100, 8)):
        small = COPIES_BYTES // num_copies
        assert size_of_copy(SINGLE_ROW, small) == SINGLE_ROW
        assert size_of_copy((1, rows), small) == (1, rows)
        assert size_of_copy((texts, 1), small) == ((texts, 1) if texts <= few else SEVERAL_TEXTS)
    assert len({SINGLE_ROW, (1, rows), (texts, 1), SEVERAL_TEXTS}) == 4


@given(st.sets(st.sampled_from([(1, 1), (1, 2), (1, 9), (2, 1), (30, 1)]), min_size=1))
def test_a_middling_decoder_has_one_for_the_fewest_of_several_rows_and_a_large_one_none(sizes):
    for num_bytes in (COPIES_BYTES // 8 + 1, COPIES_BYTES):
        copied = sizes_with_copies(sizes, num_bytes)
        assert copied == ({min(sizes)} if len(sizes) > 1 else set())
        assert all(size_of_copy(size, num_bytes) == (size if size[0] == 1 else None) for size in sizes)
    assert {size_of_copy(size, COPIES_BYTES + 1) for size in sizes} == {None}
    assert sizes_with_copies(sizes, COPIES_BYTES // 8) == sizes


@given(st.integers(0, 700), st.sets(st.integers(1, 80), min_size=1, max_size=5))
def test_pieces_are_all_rows_in_order_and_each_has_a_graph(num_rows, sizes):
    found = list(pieces(num_rows, sizes))
    assert [row for start, stop in found for row in range(start, stop)] == list(range(num_rows))
    assert all(0 < stop - start <= max(sizes) for start, stop in found)


def test_a_window_is_one_call_and_a_prompt_is_not_filled_up_to_twice_its_rows():
    assert list(pieces(5, {1, 5, 16, 64})) == [(0, 5)]
    assert list(pieces(3, {1, 5, 16, 64})) == [(0, 3)]
    assert list(pieces(7, {1, 5, 16, 64})) == [(0, 7)]
    assert list(pieces(150, {1, 5, 16, 64})) == [(0, 64), (64, 128), (128, 144), (144, 150)]
