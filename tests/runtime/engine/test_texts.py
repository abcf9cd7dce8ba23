"""Real processes: every schedule commits what plain decoding commits."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from runtime.lanes.sequence_lanes import Listener
from runtime.verification.rules import Sampling
from tests.runtime import plain
from tests.runtime.engine.schedules import AUTOREGRESSIVE, NEAR_TIE, PROMPT, SCHEDULES, speculative
from tests.tiny_models import EOS, VOCAB_SIZE


@pytest.mark.parametrize("name", SCHEDULES)
@given(prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8), max_new_tokens=st.integers(1, 30))
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_greedy_text_is_that_of_plain_decoding(run, tiny_folders, name, prompt, max_new_tokens):
    expected = plain.continue_text(tiny_folders.decoder, prompt, max_new_tokens, eos=(EOS,))
    # float32 sums differ in their last bits with the number of rows: a tie to that precision has no right answer
    assume(plain.smallest_margin(tiny_folders.decoder, prompt, expected) > NEAR_TIE)
    found = run(SCHEDULES[name], prompt, max_new_tokens)
    assert list(found.tokens) == expected
    assert found.trace.events == []


@pytest.mark.parametrize("name", SCHEDULES)
def test_text_ends_at_an_eos_inside_a_window(run, tiny_folders, name):
    text = plain.continue_text(tiny_folders.decoder, PROMPT, 24)
    for place in (3, 7, 10):
        first = text.index(text[place])
        found = run(SCHEDULES[name], eos_token_ids={text[place]})
        assert list(found.tokens) == text[: first + 1]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_text_under_match_is_that_of_plain_sampling(run, tiny_folders, name, seed):
    sampling = Sampling("match", 1.0, seed)
    expected = plain.continue_text(tiny_folders.decoder, PROMPT, 24, sampling, eos=(EOS,))
    assert list(run(SCHEDULES[name], temperature=1.0, seed=seed).tokens) == expected


def test_sampled_texts_differ_by_seed(run):
    assert len({run(AUTOREGRESSIVE, temperature=1.0, seed=seed).tokens for seed in range(5)}) == 5


@pytest.mark.parametrize(
    "name", ["pooled", "mirror from the exit", "mirror from the draft", "mirror with uneven roots"]
)
def test_where_a_window_comes_from_changes_no_text_under_ratio(run, name):
    """Draws belong to places. Of what distribution these texts are: `tests.benchmarks.test_sampled_texts`."""
    schedule = SCHEDULES[name].model_copy(update={"verification": "ratio"})
    alone = speculative(schedule.num_speculative_tokens, verification="ratio")
    for seed in range(4):
        found, expected = (run(one, temperature=2.0, seed=seed, eos_token_ids=()) for one in (schedule, alone))
        assert found.tokens == expected.tokens


def test_tokens_are_announced_as_they_are_committed(run):
    said = []
    found = run(speculative(), listener=Listener(on_tokens=said.append))
    assert tuple(token for tokens in said for token in tokens) == found.tokens
    assert [len(tokens) for tokens in said] == [entry.num_committed for entry in found.trace.rounds]


def test_the_last_position_of_the_target_can_be_used(run, tiny_folders):
    found = run(AUTOREGRESSIVE, PROMPT, 121, eos_token_ids=())
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, PROMPT, 121)
