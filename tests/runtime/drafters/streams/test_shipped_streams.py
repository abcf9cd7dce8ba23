"""Shipped streams in float32: texts and windows are those without them, and fewer steps make them."""

import pytest
import torch

from decoding.messages import NO_WINDOW
from decoding.schedule import Schedule
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import load_draft
from runtime.drafters.shipped import SHIPPED_FOLDER, find_drafter
from runtime.drafters.streams.folder import load_streams
from runtime.models.tokenizer import Tokenizer
from runtime.models.weights import load_decoder
from runtime.target.streaming_target import StreamingTarget
from runtime.target.target_model import TargetModel

DRAFT = "smollm2-135m-draft4"
STREAMS = "smollm2-135m-streams"
NUM_NEW = 32


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


def test_a_target_that_drafts_says_what_it_says_by_itself_in_fewer_passes(decoder, prompt, text) -> None:
    if not (SHIPPED_FOLDER / STREAMS).is_dir():
        pytest.skip(f"{STREAMS} is not among the drafters here")
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


def test_a_draft_with_streams_drafts_what_it_drafts_without_in_fewer_steps(decoder, prompt, text) -> None:
    draft = load_draft(find_drafter(DRAFT), decoder, dtype=torch.float32)
    if draft.config.streams is None:
        pytest.skip(f"{DRAFT} has no streams")
    results = []
    for num_streams in (0, draft.config.streams.num_streams):
        schedule = Schedule(
            method="speculative",
            target_lane="t",
            draft_lane="d",
            num_speculative_tokens=6,
            draft_streams=num_streams,
        )
        drafter = Drafter(draft)
        drafter.prefill(prompt, schedule=schedule, capacity=len(prompt) + NUM_NEW)
        windows, num_steps = [], 0
        for place in range(0, NUM_NEW, 4):
            steps = drafter.rollout(text[max(place - 4, 0) : place])
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    windows.append(stop.value)
                    break
                num_steps += 1
        results.append((windows, num_steps))
    (without, _), (with_streams, num_steps) = results
    assert with_streams == without
    assert num_steps < 6 * len(without)
