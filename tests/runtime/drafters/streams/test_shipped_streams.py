"""Shipped streams in float32: the text is that without them, in fewer passes."""

import pytest
import torch

from decoding.messages import NO_WINDOW
from runtime.drafters.shipped import find_drafter
from runtime.drafters.streams.drafter import load_streams
from runtime.models.decoder import load_decoder
from runtime.models.tokenizer import Tokenizer
from runtime.target.streaming_target import StreamingTarget
from runtime.target.target_model import TargetModel

STREAMS = "smollm2-135m-streams"
NUM_NEW = 16


@pytest.fixture(scope="module")
def decoder(embedded_model_folder):
    return load_decoder(embedded_model_folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def prompt(embedded_model_folder):
    chat = [{"role": "user", "content": "Count from one to ten, then explain how rain forms."}]
    return Tokenizer.from_folder(embedded_model_folder).encode_chat(chat)


@pytest.fixture(scope="module")
def text(decoder, prompt):
    """What the target says by itself."""
    target = TargetModel.of(decoder)
    target.prefill(prompt, capacity=len(prompt) + NUM_NEW)
    return [target.verify(NO_WINDOW).next_token for _ in range(NUM_NEW)]


def test_a_target_that_drafts_says_what_it_says_by_itself_in_fewer_passes(decoder, prompt, text):
    target = StreamingTarget(decoder, load_streams(find_drafter(STREAMS), decoder))
    target.set_tree(size=16, depth=3)
    target.prefill(prompt, capacity=len(prompt) + NUM_NEW + 17)
    found, window, num_passes = [], NO_WINDOW, 0
    while len(found) < NUM_NEW:
        verdict = target.stream(window)
        found += [*window.accepted(verdict), verdict.next_token]
        window, num_passes = verdict.window, num_passes + 1
    assert found[:NUM_NEW] == text
    assert num_passes < NUM_NEW
