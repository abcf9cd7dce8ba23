"""A target that drafts for itself says what it would have said, and drafts what its streams say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.messages import NO_WINDOW, Window
from runtime.drafters.streams import StreamingTarget, StreamTree
from runtime.target.target_model import TargetModel
from tests.runtime import plain
from tests.runtime.drafters.streams.test_model import streams_of_row
from tests.tiny_models import VOCAB_SIZE, tiny_streams, tiny_target

PATHS = ((0,), (1,), (0, 0), (2,), (0, 1), (0, 0, 0), (1, 0), (0, 0, 1))
PROMPT = [5, 17, 3, 44]
KEPT = torch.arange(0, VOCAB_SIZE, 2)
SAID = torch.cat([KEPT, torch.tensor([3, 5, 17])])
"""What streams may guess after the prompt."""
DECODER = tiny_target()
STREAMS = tiny_streams(DECODER)


def streaming(prompt, *, size=8, depth=3, paths=PATHS):
    target = StreamingTarget(DECODER, StreamTree(STREAMS, DECODER, KEPT, paths))
    target.set_tree(size=size, depth=depth)
    target.prefill(prompt, capacity=100)
    return target


def best_of_streams(text, row, count):
    """Best ids of every stream of a row, by the plain reference."""
    logits = streams_of_row(DECODER, STREAMS, text, row) @ DECODER.lm_head.weight[SAID].T
    return SAID[logits.argsort(dim=-1, descending=True, stable=True)[:, :count]].tolist()


def expected_window(text, paths):
    """The tree drafted after `text`, whose last token was chosen by the row before it."""
    best = best_of_streams(text[:-1], len(text) - 2, 3)
    return [best[len(path) - 1][path[-1]] for path in paths]


def decode(target, prompt, num_tokens):
    """The text that rounds of `stream` commit, and every window with the text it was drafted after."""
    text, window, drafted = list(prompt), NO_WINDOW, []
    while len(text) < len(prompt) + num_tokens:
        verdict = target.stream(window)
        text += [*window.accepted(verdict), verdict.next_token]
        window = verdict.window
        drafted.append((list(text), window))
    return text[len(prompt) :][:num_tokens], drafted


@given(
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
    size=st.integers(1, 8),
    depth=st.integers(1, 3),
)
@settings(deadline=None, max_examples=10)
def test_the_text_is_that_of_plain_decoding(prompt, size, depth):
    text, _ = decode(streaming(prompt, size=size, depth=depth), prompt, 12)
    assert text == plain.continue_text(DECODER, prompt, 12)


def test_every_window_holds_the_best_ids_of_the_streams_of_the_row_that_chose_the_last_token():
    _, drafted = decode(streaming(PROMPT), PROMPT, 10)
    assert len(drafted) > 3
    for text, window in drafted:
        assert list(window.tokens) == expected_window(text, PATHS)
        assert window.parents == (-1, -1, 0, -1, 0, 2, 1, 2)


def test_a_window_that_is_accepted_in_part_is_followed_by_the_streams_of_its_last_row_that_stands():
    first, second = plain.continue_text(DECODER, PROMPT, 3)[1:]
    target = streaming(PROMPT)
    token = target.stream(NO_WINDOW).next_token
    wrong = (first + 1) % VOCAB_SIZE
    window = Window((wrong, first, second, (second + 1) % VOCAB_SIZE), parents=(-1, -1, 1, 2))
    verdict = target.stream(window)
    assert verdict.path == (1, 2)
    text = [*PROMPT, token, first, second, verdict.next_token]
    assert list(verdict.window.tokens) == expected_window(text, PATHS)


@pytest.mark.parametrize(("size", "depth"), [(1, 3), (4, 3), (8, 2), (8, 1)])
def test_trees_are_cut_to_size_and_depth(size, depth):
    _, drafted = decode(streaming(PROMPT, size=size, depth=depth), PROMPT, 3)
    kept = [path for path in PATHS if len(path) <= depth][:size]
    for text, window in drafted:
        assert list(window.tokens) == expected_window(text, kept)


def test_verdicts_are_those_of_verify_bit_for_bit():
    """The rows of the target pass through the same calls; a window of any shape leaves the same keys."""
    own, other = streaming(PROMPT), TargetModel.of(DECODER)
    other.prefill(PROMPT, capacity=100)
    window = NO_WINDOW
    for _ in range(5):
        verdict = own.stream(window)
        assert other.verify(window) == verdict._replace(window=None)
        stop = own.cache.cursor
        assert torch.equal(own.cache.memory.slots[..., :stop, :], other.cache.memory.slots[..., :stop, :])
        window = verdict.window


def test_streams_have_room_after_a_text_that_fills_its_slots():
    target = streaming(list(range(1, 60)) + PROMPT[:2])
    room = target.cache.memory.num_slots
    with torch.inference_mode():
        target.prefill([5] * (room - target.num_streams), capacity=room - target.num_streams)
        target.stream(NO_WINDOW)
    assert target.cache.cursor == room - target.num_streams
