"""Real processes: the trace of a schedule tells a consistent story."""

from itertools import pairwise

import pytest

from decoding import metrics
from decoding.trace import Work
from tests.runtime.engine.schedules import SCHEDULES


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_trace_tells_every_round(run, name):
    schedule = SCHEDULES[name]
    found = run(schedule)
    rounds, trace = found.trace.rounds, found.trace
    assert sum(entry.num_committed for entry in rounds) == len(found.tokens)
    assert all(entry.num_drafted == schedule.num_speculative_tokens for entry in rounds)
    asked = schedule.method == "mirror"
    assert [entry.hit is not None for entry in rounds] == [asked] * (len(rounds) - 1) + [False]
    times = [0.0, *[time for entry in rounds for time in (entry.start_s, entry.end_s)], trace.decode_s]
    assert times == sorted(times)
    assert trace.prefill_s > 0
    if schedule.draft_lane is not None:
        assert metrics.mean_acceptance_length([trace]) > 1.3


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_trace_tells_every_operation(run, name):
    schedule = SCHEDULES[name]
    trace = run(schedule).trace
    num_rounds, num_tokens = len(trace.rounds), schedule.num_speculative_tokens
    by_work = {work: [span for span in trace.spans if span.work is work] for work in Work}
    whole = [Work.PREFIX, Work.SUFFIX] if schedule.uses_exit else [Work.VERIFY]
    for work in whole:
        assert [span.round for span in by_work[work]] == list(range(num_rounds))
        assert {span.rows for span in by_work[work]} == {num_tokens + 1}
    for lane in ("big", "small"):
        spans = [span for span in trace.spans if span.lane == lane]
        assert all(left.end_s <= right.start_s for left, right in pairwise(spans))
    drafted = by_work[Work.ROLLOUT_STEP]
    num_rollouts = 1 + sum(entry.hit is False for entry in trace.rounds)
    if schedule.method == "speculative":
        num_rollouts = num_rounds
    if schedule.draft_lane is not None:
        assert len(drafted) == num_rollouts * num_tokens
    transfers = [(span.lane, span.round) for span in by_work[Work.TRANSFER]]
    assert transfers == [("big->small", place) for place in range(num_rounds) if schedule.uses_exit]


def test_a_draft_that_is_almost_the_target_hits(run):
    """With the draft's two best runners-up as roots and a window of its length, hits do happen."""
    traces = [run(SCHEDULES["mirror from the draft"], [token, 9, 4], 40).trace for token in range(8)]
    assert metrics.reuse_rate(traces) > 0.2
