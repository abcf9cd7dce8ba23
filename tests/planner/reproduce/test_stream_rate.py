"""The rate at which stream tokens are right, from the steps that windows take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.schedule import Schedule
from planner.reproduce.setup import NUM_STREAMS, WINDOW, mean_steps, stream_rate
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts

counts = st.integers(1, 9)


@given(counts, st.integers(1, 4))
def test_guesses_never_right_take_a_step_for_each_token_and_those_always_right_the_fewest(num_tokens, num_streams):
    assert mean_steps(0.0, num_tokens, num_streams) == num_tokens
    # three tokens and one stream: after the first step the second token, and with it the third if it was guessed
    assert mean_steps(0.4, 3, 1) == pytest.approx(1 + 0.4 * 1 + 0.6 * 2)
    assert mean_steps(1.0, num_tokens, num_streams) == 1 + -(-(num_tokens - 1) // (1 + num_streams))


@given(counts, st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_better_guesses_never_take_more_steps(num_tokens, num_streams, one, other):
    less, more = sorted((one, other))
    assert mean_steps(more, num_tokens, num_streams) <= mean_steps(less, num_tokens, num_streams) + 1e-9


def test_the_rate_is_the_one_that_gives_the_papers_steps():
    assert mean_steps(stream_rate(WINDOW, NUM_STREAMS), WINDOW, 2) == pytest.approx(3.5)
    with pytest.raises(ValueError, match="7 tokens in 2 steps: no rate of 2 streams gives that"):
        stream_rate(WINDOW, 2, steps=2)


def test_drawn_windows_take_as_many_steps():
    rate = stream_rate(WINDOW, NUM_STREAMS)
    texts = Bernoulli(0.5, stream_rates=(rate, rate), exit_coverage={2: (0.5, 0.6)}, texts=Texts(num_texts=64))
    steps = mean_steps_of(texts)
    assert steps == pytest.approx(3.5, rel=0.02)


def mean_steps_of(texts):
    schedule = Schedule(
        method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=WINDOW, draft_streams=2
    )
    walk = texts.walk(schedule, None)
    counts = texts.guessing(schedule).counts(walk.at)
    return 1 + counts[1].sum(axis=1).mean()
