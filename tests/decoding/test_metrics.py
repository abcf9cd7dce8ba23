"""Figures of merit against their definitions, on traces small enough to count."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding import metrics
from decoding.messages import Verdict, Window
from decoding.trace import NOT_COMMITTED, Round, Trace


def trace(*accepted: int, drafted: int = 3, decode_s: float = 1.0, hits: tuple[bool, ...] = ()) -> Trace:
    """Rounds with these numbers of accepted tokens; hits for the first of them."""
    told = [*hits, *[None] * (len(accepted) - len(hits))]
    rounds = [Round(0, 0, drafted, one, one + 1, (one, 9), hit) for one, hit in zip(accepted, told, strict=True)]
    return Trace(world="simulated", rounds=rounds, decode_s=decode_s)


TRACES = [trace(3, 0, 1, decode_s=2.0, hits=(True, False)), trace(3, decode_s=1.0)]


def test_figures_of_two_texts_together():
    assert metrics.num_rounds(TRACES) == 4
    assert metrics.num_tokens(TRACES) == 4 + 1 + 2 + 4
    assert metrics.num_accepted_tokens(TRACES) == 7
    assert metrics.mean_acceptance_length(TRACES) == 11 / 4
    assert metrics.per_position_acceptance_rate(TRACES) == [3 / 4, 2 / 4, 2 / 4]
    assert metrics.reuse_rate(TRACES) == 1 / 2, "of the rounds that asked"
    assert math.isnan(metrics.reuse_rate([trace(1)]))
    assert (metrics.decode_s(TRACES), metrics.tpot_s(TRACES)) == (3.0, 3 / 11)


@given(st.lists(st.integers(0, 3), min_size=1))
def test_closed_forms(accepted):
    """One more than accepted per verification; that is the sum of the rates by position."""
    traces = [trace(*accepted)]
    length = metrics.mean_acceptance_length(traces)
    assert length == pytest.approx(1 + metrics.num_accepted_tokens(traces) / metrics.num_rounds(traces))
    assert length == pytest.approx(1 + sum(metrics.per_position_acceptance_rate(traces)))


def test_nothing_decoded_has_no_rates():
    assert math.isnan(metrics.mean_acceptance_length([]))
    assert math.isnan(metrics.tpot_s([Trace(world="simulated")]))
    assert metrics.per_position_acceptance_rate([]) == []


def test_requests_are_read_before_they_are_decoded():
    one, other = trace(3, 0, decode_s=2.0), trace(1, decode_s=4.0)
    one.rounds[0] = one.rounds[0]._replace(end_s=1.5)
    other.rounds[0] = other.rounds[0]._replace(end_s=4.0)
    one.prefill_s, other.prefill_s = 1.0, 2.0
    figures = metrics.prefill_s, metrics.ttft_s, metrics.e2e_s
    assert [figure([one, other]) for figure in figures] == [3, (2.5 + 6) / 2, (3 + 6) / 2]
    other.prefill_s = None
    assert [figure([one, other]) for figure in figures] == [None] * 3
    assert [figure([]) for figure in figures] == [None] * 3


def test_a_round_is_from_handing_over_the_window_to_its_commit():
    trace = Trace(world="simulated")
    trace.begin_round(1.0)
    trace.end_round(3.0, Window((4, 5, 6)), Verdict(2, 7), 3)
    assert trace.rounds == [Round(1.0, 3.0, 3, 2, 3, (2, 7), None)]


def test_a_hit_is_told_later():
    trace = Trace(world="simulated")
    for hit in (True, False):
        trace.end_round(1.0, Window((4,)), Verdict(1, 7), 2)
        trace.mark_hit(hit=hit)
    trace.end_round(2.0, Window((4,)), Verdict(0, 8), 1)
    assert [entry.hit for entry in trace.rounds] == [True, False, None]
    assert all(isinstance(entry, Round) for entry in trace.rounds)


def test_what_the_end_of_the_sequence_cuts_off_is_the_same_in_both_worlds():
    """The real target decides on tokens behind the end; a replay cannot know them."""
    measured, simulated = Trace(world="measured"), Trace(world="simulated")
    measured.end_round(1.0, Window((4, 5, 6)), Verdict(3, 9), 2)
    simulated.end_round(1.0, Window((4, 5, 6)), Verdict(2, -1), 2)
    assert measured.rounds == simulated.rounds == [Round(0.0, 1.0, 3, 2, 2, (2, NOT_COMMITTED), None)]
