from __future__ import annotations

from decoding.messages import Verdict, Window
from decoding.trace import NOT_COMMITTED, Round, Trace


def test_a_round_is_from_handing_over_the_window_to_its_commit() -> None:
    trace = Trace(world="simulated")
    trace.begin_round(1.0)
    trace.end_round(3.0, Window((4, 5, 6)), Verdict(2, 7), 3)
    assert trace.rounds == [Round(1.0, 3.0, 3, 2, 3, (2, 7), None)]


def test_a_hit_is_told_later() -> None:
    trace = Trace(world="simulated")
    for hit in (True, False):
        trace.end_round(1.0, Window((4,)), Verdict(1, 7), 2)
        trace.mark_hit(hit=hit)
    trace.end_round(2.0, Window((4,)), Verdict(0, 8), 1)
    assert [entry.hit for entry in trace.rounds] == [True, False, None]
    assert all(isinstance(entry, Round) for entry in trace.rounds)


def test_what_the_end_of_the_sequence_cuts_off_is_the_same_in_both_worlds() -> None:
    """The real target decides on tokens behind the end; a replay cannot know them."""
    measured, simulated = Trace(world="measured"), Trace(world="simulated")
    measured.end_round(1.0, Window((4, 5, 6)), Verdict(3, 9), 2)
    simulated.end_round(1.0, Window((4, 5, 6)), Verdict(2, -1), 2)
    assert measured.rounds == simulated.rounds == [Round(0.0, 1.0, 3, 2, 2, (2, NOT_COMMITTED), None)]
