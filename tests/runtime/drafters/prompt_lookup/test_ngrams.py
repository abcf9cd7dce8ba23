"""The longest n-gram that occurred before counts, of its occurrences the most recent one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.drafters.prompt_lookup.ngrams import NgramIndex

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def found(text: list[int], num_tokens: int, *, sizes: tuple[int, int] = (1, 3)) -> tuple[int, ...]:
    index = NgramIndex(min_ngram=sizes[0], max_ngram=sizes[1])
    index.extend(text)
    return index.continuation(num_tokens)


def found_by_hand(text: list[int], num_tokens: int, sizes: tuple[int, int]) -> tuple[int, ...]:
    for size in range(sizes[1], sizes[0] - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                whole = list(text)
                while len(whole) < len(text) + num_tokens:
                    whole.append(whole[end + len(whole) - len(text)])
                return tuple(whole[len(text) :])
    return ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([], ()),
        ([1], ()),
        ([1, 2, 3], ()),
        ([1, 2, 3, 1], (2, 3, 1)),
        ([1, 2, 9, 5, 2, 8, 1, 2], (9, 5, 2)),  # two tokens agree there, one only at the more recent place
        ([1, 2, 8, 1, 2, 9, 1, 2], (9, 1, 2)),  # of two places the recent one
        ([7, 7], (7, 7, 7)),
        ([4, 5, 4, 5], (4, 5, 4)),  # goes on with the period
    ],
)
def test_what_followed_the_last_tokens_before(text: list[int], expected: tuple[int, ...]) -> None:
    assert found(text, 3) == expected


def test_fewer_tokens_than_the_least_do_not_count() -> None:
    assert found([1, 2, 3, 1], 3, sizes=(2, 3)) == ()


@given(TOKENS, st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_it_finds_what_a_plain_search_finds(text: list[int], num_tokens: int, least: int, more: int) -> None:
    sizes = (least, least + more)
    assert found(text, num_tokens, sizes=sizes) == found_by_hand(text, num_tokens, sizes)


@given(TOKENS, st.integers(0, 40))
def test_a_text_may_come_in_pieces(text: list[int], cut: int) -> None:
    index = NgramIndex(min_ngram=1, max_ngram=3)
    index.extend(text[:cut])
    index.continuation(4)
    index.extend(text[cut:])
    assert index.continuation(4) == found(text, 4)


@given(TOKENS, st.integers(1, 6))
def test_a_shorter_window_is_the_beginning_of_a_longer_one(text: list[int], num_tokens: int) -> None:
    assert found(text, num_tokens) == found(text, 9)[:num_tokens]
