"""Prompt lookup on lanes: the text is the target's own, and what repeats itself is drafted."""

import pytest

from decoding.schedule import Schedule
from tests.runtime import plain
from tests.runtime.thread_lanes import thread_engine


@pytest.mark.parametrize("draft_lane", ["big", "small"])
def test_text_is_that_of_plain_decoding(tiny_folders, draft_lane) -> None:
    schedule = Schedule(
        method="prompt_lookup",
        target_lane="big",
        draft_lane=draft_lane,
        drafter="prompt-lookup",
        num_speculative_tokens=3,
    )
    prompt = [5, 17, 3]
    with thread_engine(tiny_folders.target) as engine:
        again = plain.continue_text(tiny_folders.decoder, prompt, 12)
        repeated = [*prompt, *again, *prompt]
        found = engine.generate(schedule, repeated, max_new_tokens=20, eos_token_ids=())
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, repeated, 20)
    assert max(entry.num_drafted for entry in found.trace.rounds) == 3
