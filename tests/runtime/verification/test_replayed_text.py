"""What models are made to say, by the place in the text alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.messages import Verdict, Window
from runtime.verification.replayed_text import ReplayedText
from runtime.verification.rules import Sampling, decide

WORDS = 50


@st.composite
def replays(draw):
    count = draw(st.integers(1, 6))
    words = st.tuples(*[st.integers(0, WORDS - 1)] * count)
    flags = st.tuples(*[st.booleans()] * count)
    return ReplayedText(
        prompt_length=draw(st.integers(1, 4)),
        text=draw(words),
        drafted=draw(words),
        in_draft=draw(flags),
        in_exit=draw(flags),
    )


own_ids = st.lists(st.integers(0, WORDS - 1), unique=True, min_size=2, max_size=6)


@given(replay=replays(), own=own_ids)
def test_candidates_hold_the_word_where_it_is_offered_and_nowhere_else(replay, own):
    for place, word in enumerate(replay.text):
        position = replay.prompt_length + place
        for_draft, for_exit = replay.draft_alternatives(position, own), replay.exit_candidates(position, own)
        for found in (for_draft, for_exit):
            assert len(set(found)) == len(found) == len(own)
        assert (word in for_exit) == replay.in_exit[place]
        assert (word in for_draft) == (replay.in_draft[place] or replay.drafted[place] == word)
        assert replay.drafted[place] in for_draft
        if replay.in_draft[place]:
            assert for_draft[0] == word, "within any budget, whether or not a drafted token is left out"
        kept = [token for token in own if token in for_exit and token != word]
        assert [token for token in for_exit if token in kept] == kept, "the others stay in their order"


@given(replay=replays(), own=own_ids)
def test_after_its_end_models_speak_for_themselves(replay, own):
    position = replay.prompt_length + len(replay.text)
    assert replay.target_token(position, own[0]) == replay.draft_token(position, own[0]) == own[0]
    assert replay.draft_alternatives(position, own) == replay.exit_candidates(position, own) == tuple(own)


def test_a_verdict_follows_from_what_the_target_is_made_to_say():
    replay = ReplayedText(
        prompt_length=3, text=(7, 8, 9), drafted=(7, 1, 9), in_draft=(False,) * 3, in_exit=(False,) * 3
    )
    sampling = Sampling(replay=replay)
    logits = torch.zeros(3, WORDS)
    logits[:, 5] = 1.0
    assert decide(logits, Window((7, 1)), sampling, 3) == Verdict(1, 8)
    assert decide(logits, Window((7, 8)), sampling, 3) == Verdict(2, 9)
    assert decide(logits, Window((9, 5)), sampling, 5) == Verdict(2, 5), "its own words after the end"
    tree = Window((1, 7, 8), parents=(-1, -1, 1))
    assert decide(torch.zeros(4, WORDS), tree, sampling, 3) == Verdict(2, 9, path=(1, 2))
