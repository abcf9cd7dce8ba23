"""A text that a run cut short is replayed as far as it was, whatever drafts."""

from dataclasses import replace

import pytest

from sim.acceptance.replay import Replay
from tests.planner.synthetic import acceptance_record
from tests.sim.worlds.records import TREES
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree

RECORD = acceptance_record(num_prompts=3, num_tokens=40, trees=TREES, acceptance=0.8)
SCHEDULES = [AUTOREGRESSIVE, speculative(4), mirror("draft"), *(tree(one, 5) for one in TREES if one.depth > 1)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_rounds_of_a_cut_text_are_those_of_the_whole_one_as_far_as_it_goes(schedule) -> None:
    """Windows and what is accepted of them end with the text, as drafts behind its end do."""
    for num_tokens in range(1, 41):
        cut = replace(RECORD, prompts=tuple(prompt.cut(num_tokens) for prompt in RECORD.prompts))
        found, whole = (Replay(record).answers(schedule, num_tokens) for record in (cut, RECORD))
        for ours, theirs, prompt in zip(found, whole, RECORD.prompts, strict=True):
            text = prompt.text.tolist()
            committed = []
            for window, verdict, _ in ours.rounds:
                accepted = [window.tokens[node] for node in verdict.path] if verdict.path else []
                if not verdict.path:
                    accepted = list(window.tokens[: verdict.num_accepted])
                assert accepted == text[len(committed) : len(committed) + verdict.num_accepted]
                committed += [*accepted, verdict.next_token]
            assert len(ours.rounds) == len(theirs.rounds)
            assert committed[:num_tokens] == text[:num_tokens]
