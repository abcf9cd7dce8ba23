"""Texts that repeat themselves are told from texts that do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.recorded.prompt_record import repeats_itself

IDS = st.integers(0, 49_151)


@given(st.lists(IDS, max_size=40), st.lists(IDS, min_size=1, max_size=8), st.integers(0, 7))
def test_a_cycle_at_the_end_is_a_loop_wherever_it_was_cut(start, cycle, cut):
    times = 4 + len(start) // len(cycle)
    text = [*start, *(cycle * times), *cycle[: cut % len(cycle)]]
    assert repeats_itself(text)
    assert repeats_itself([*text, 50_000]), "the end token is no way out"


@given(st.lists(IDS, max_size=64, unique=True))
def test_a_text_of_different_tokens_is_none(text):
    assert not repeats_itself(text)


@pytest.mark.parametrize(
    ("text", "is_loop"),
    [
        ("Ah, aye, aye, aye, aye, aye, aye, aye, aye,", True),
        ("I do not know. I am sorry. I do not know. I am sorry. I do not know. I am sorry.", True),
        ("ha ha ha", False),
        ("the cat sat on the mat and the dog lay on the rug by the door of the house", False),
        ("one apple , two apples , three apples , four apples , five apples and no more", False),
        ("", False),
    ],
)
def test_words_that_come_again_make_no_loop_but_rounds_do(text, is_loop):
    words = text.split()
    assert repeats_itself([words.index(word) for word in words]) == is_loop


def test_long_repetition_is_seen_without_a_short_cycle():
    passage = list(range(40))
    assert repeats_itself([*passage, 99, *passage, 98, *passage])
    assert not repeats_itself([*passage, *passage[:20]])
