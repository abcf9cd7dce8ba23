import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.messages import Verdict, Window
from decoding.sequence import DecodedSequence

EOS = 0


def sequence(max_new_tokens: int, *, eos: tuple[int, ...] = (EOS,)) -> DecodedSequence:
    return DecodedSequence([7, 8], max_new_tokens=max_new_tokens, eos_token_ids=eos)


def test_of_a_tree_the_accepted_path_is_committed():
    one = sequence(10)
    tree = Window((1, 2, 3, 4), parents=(-1, -1, 1, 0))
    assert one.commit(tree, Verdict(2, 5, path=(1, 2))) == (2, 3, 5)
    assert one.commit(tree, Verdict(0, 6)) == (6,)


@pytest.mark.parametrize(
    ("tokens", "verdict", "committed"),
    [((1, EOS, 3), Verdict(3, 4), (1, EOS)), ((1, 2, 3), Verdict(1, EOS), (1, EOS)), ((9, 2), Verdict(2, 9), (9,))],
)
def test_nothing_is_committed_behind_an_end_token(tokens, verdict, committed):
    one = sequence(10, eos=(EOS, 9))
    assert one.commit(Window(tokens), verdict) == committed
    assert not one.unfinished


def test_an_end_token_that_was_refused_ends_nothing():
    one = sequence(10)
    one.commit(Window((1, EOS)), Verdict(1, 5))
    assert one.unfinished


@pytest.mark.parametrize(("prompt", "most"), [([], 5), ([1], 0)])
def test_a_sequence_needs_a_prompt_and_room(prompt, most):
    with pytest.raises(ValueError, match="needs a prompt and max_new_tokens >= 1"):
        DecodedSequence(prompt, max_new_tokens=most, eos_token_ids=())


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 15), st.data())
def test_rounds_of_any_size_commit_the_same_text(text, most, data):
    one, position = sequence(most), 0
    while one.unfinished and position < len(text):
        accepted = data.draw(st.integers(0, len(text) - position - 1))
        window = Window(tuple(text[position : position + accepted]))
        position += len(one.commit(window, Verdict(accepted, text[position + accepted])))
    end = text.index(EOS) + 1 if EOS in text else len(text)
    assert one.tokens == text[: min(end, most)]
