"""Which steps a draft with streams needs for a window, from what its guesses were worth."""

from collections import Counter
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from decoding.errors import ProfileError, RecordError
from decoding.trace import Work
from sim.acceptance.joined_record import Guessing
from sim.evaluator import predict
from sim.world import simulate
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import MAX_WINDOW, prompt, record
from tests.sim.worlds.schedules import mirror, speculative

ALWAYS, NEVER = (np.full((4, 6), hits) for hits in (9, 0))
hit_counts = arrays(np.int64, (4, 6), elements=st.integers(0, 4))


def guessing(hits, num_tokens, num_streams):
    return Guessing(np.asarray(hits), num_tokens=num_tokens, num_streams=num_streams)


@pytest.mark.parametrize(
    ("hits", "num_tokens", "num_streams", "rows"),
    [
        (ALWAYS, 6, 2, [3, 2]),  # the last step guesses no more than there is room for
        (ALWAYS, 6, 3, [4, 1]),
        (NEVER, 5, 2, [3, 3, 2, 1]),
        # behind the first token one is right, so the third is there; behind that none, behind the fourth two
        ([[1, 9, 0, 2, 9, 9]] * 4, 6, 2, [3, 3, 2]),
        (NEVER, 1, 2, []),
    ],
)
def test_right_guesses_behind_the_last_token_that_is_there_save_steps_and_wrong_ones_cost_rows(
    hits, num_tokens, num_streams, rows
):
    subject = guessing(hits, num_tokens, num_streams)
    assert [count for count in subject.rows_by_step(np.arange(4))[:, 0].tolist() if count] == rows
    assert subject.most_steps == 1 + len(rows)


@given(hit_counts, st.integers(1, 6), st.integers(1, 4))
def test_counted_steps_make_the_window_and_none_comes_after_it_is_complete(hits, num_tokens, num_streams):
    subject = guessing(hits, num_tokens, num_streams)
    at = np.arange(4)
    counts, by_step = subject.counts(at), subject.rows_by_step(at)
    most = 0
    for index in at.tolist():
        rows = [count for count in by_step[:, index].tolist() if count]
        assert by_step[: len(rows), index].tolist() == rows
        assert len(rows) <= num_tokens - 1 <= sum(rows)
        most = max(most, 1 + len(rows))
        for num_done in range(num_tokens + 1):
            by_guesses = Counter(count - 1 for count in rows[max(0, num_done - 1) :])
            assert counts[num_done, index].tolist() == [by_guesses[n] for n in range(num_streams + 1)]
    assert subject.most_steps == most


@given(st.integers(1, 6), st.integers(1, 4))
def test_streams_that_are_always_right_take_the_fewest_steps_there_are_and_those_never_right_one_for_each_token(
    num_tokens, num_streams
):
    assert guessing(ALWAYS, num_tokens, num_streams).most_steps == 1 + ceil((num_tokens - 1) / (1 + num_streams))
    assert guessing(NEVER, num_tokens, num_streams).most_steps == num_tokens


def streaming_record():
    hits = np.zeros((6, MAX_WINDOW), dtype=np.int32)
    hits[0] = 1
    known = {"stream_hits": hits, "feature_stream_hits": hits}
    one = prompt("111110")
    return record(type(one)(**{name: getattr(one, name) for name in one.__slots__} | known), num_streams=1)


def test_by_hand():
    """Two windows of four: the first in steps of 1, 2 and 1 rows, the second in 1, 2, 2 and 1."""
    profile = machine(lane("target", layer=10.0), lane("draft", draft_step=4.0, draft_streams=3.0))
    schedule = speculative(4, draft_streams=1)
    (trace,) = simulate(schedule, profile, streaming_record())
    drafted = [(span.rows, span.end_s - span.start_s) for span in trace.spans if span.work is Work.ROLLOUT_STEP]
    assert drafted == [*[(1, 4.0), (2, 7.0), (1, 4.0)], *[(2, 4.0), (2, 7.0), (2, 7.0), (1, 4.0)]]
    assert predict(schedule, profile, streaming_record()).decode_s == trace.decode_s


@pytest.mark.parametrize("schedule", [speculative(4, draft_streams=2), mirror("draft", draft_streams=2)])
def test_more_streams_than_were_recorded_are_refused(schedule):
    with pytest.raises(RecordError, match="more than 1 draft_streams were not recorded"):
        predict(schedule, machine(), streaming_record())


def test_a_profile_that_has_not_timed_streams_is_refused():
    blind = [lane(name).model_copy(update={"draft_streams": None}) for name in ("target", "draft")]
    with pytest.raises(ProfileError, match="no measured draft_streams"):
        predict(speculative(4, draft_streams=1), machine(*blind), streaming_record())
