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
@given(
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8),
    max_new_tokens=st.integers(1, 30),
)
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_greedy_text_is_that_of_plain_decoding(run, tiny_folders, name, prompt, max_new_tokens) -> None:
    expected = plain.continue_text(tiny_folders.decoder, prompt, max_new_tokens, eos=(EOS,))
    # float32 sums differ in their last bits with the number of rows: a tie to that precision has no right answer
    assume(plain.smallest_margin(tiny_folders.decoder, prompt, expected) > NEAR_TIE)
    found = run(SCHEDULES[name], prompt, max_new_tokens)
    assert list(found.tokens) == expected
    assert found.trace.events == []


@pytest.mark.parametrize("name", SCHEDULES)
def test_text_ends_at_an_eos_inside_a_window(run, tiny_folders, name) -> None:
    text = plain.continue_text(tiny_folders.decoder, PROMPT, 24)
    for place in (3, 7, 10):
        first = text.index(text[place])
        found = run(SCHEDULES[name], eos_token_ids={text[place]})
        assert list(found.tokens) == text[: first + 1]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_text_under_match_is_that_of_plain_sampling(run, tiny_folders, name, seed) -> None:
    sampling = Sampling("match", 1.0, seed)
    expected = plain.continue_text(tiny_folders.decoder, PROMPT, 24, sampling, eos=(EOS,))
    assert list(run(SCHEDULES[name], temperature=1.0, seed=seed).tokens) == expected


def test_sampled_texts_differ_by_seed(run) -> None:
    assert len({run(AUTOREGRESSIVE, temperature=1.0, seed=seed).tokens for seed in range(5)}) == 5


@pytest.mark.parametrize("name", ["speculative", "mirror from the draft", "hybrid mirror", "mirror with features"])
def test_sampled_text_under_ratio_is_distributed_as_plain_sampling(run, tiny_folders, name) -> None:
    """The second new token, whose distribution depends on what was accepted before it."""
    schedule = SCHEDULES[name].model_copy(update={"verification": "ratio"})
    prompt, count = [5, 17], 250
    logits = plain.target_logits(tiny_folders.decoder, prompt)[-1]
    first = logits.double().div(2.0).softmax(-1)
    expected = sum(
        first[token] * plain.target_logits(tiny_folders.decoder, [*prompt, token])[-1].double().div(2.0).softmax(-1)
        for token in range(VOCAB_SIZE)
    ).tolist()
    counts = [0] * VOCAB_SIZE
    for seed in range(count):
        found = run(schedule, prompt, 2, temperature=2.0, seed=seed, eos_token_ids=())
        counts[found.tokens[1]] += 1
    likely = [token for token in range(VOCAB_SIZE) if expected[token] * count >= 5]
    rest = 1 - sum(expected[token] for token in likely)
    statistic = sum((counts[token] - count * expected[token]) ** 2 / (count * expected[token]) for token in likely)
    statistic += (count - sum(counts[token] for token in likely) - count * rest) ** 2 / (count * rest)
    degrees = len(likely)
    assert degrees >= 8
    assert statistic < degrees + 3.1 * (2 * degrees) ** 0.5 + 5  # beyond the 99.9th percentile


def test_tokens_are_announced_as_they_are_committed(run) -> None:
    said = []
    found = run(speculative(), listener=Listener(on_tokens=said.append))
    assert tuple(token for tokens in said for token in tokens) == found.tokens
    assert [len(tokens) for tokens in said] == [entry.num_committed for entry in found.trace.rounds]


def test_the_last_position_of_the_target_can_be_used(run, tiny_folders) -> None:
    found = run(AUTOREGRESSIVE, PROMPT, 121, eos_token_ids=())
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, PROMPT, 121)
