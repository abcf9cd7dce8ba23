"""What counts as a stop of this process, and the clock that leaves stops out."""

from threading import Event
from types import SimpleNamespace

import pytest

from runtime.wire import stops
from runtime.wire.stops import Stops, seeing_stops, working_s
from tests.mirrorsd.clock import Clock


def test_a_stop_that_two_waits_see_is_counted_once(monkeypatch):
    seen = Stops()
    for now_s in (60.0, 61.0):
        monkeypatch.setattr(stops, "time", SimpleNamespace(perf_counter=lambda now_s=now_s: now_s))
        assert seen.late_s(0.0, 10.0) == now_s - 10.0
    assert seen.total_s == 51.0
    assert seen.late_s(50.0, 10.5) == 0.5, "a busy machine"
    assert seen.total_s == 51.0


def test_work_has_no_less_time_for_a_stop_in_it(monkeypatch):
    clock = Clock(100.0)
    monkeypatch.setattr(stops, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(stops, "STOPS", SimpleNamespace(total_s=0.0))
    start_s = working_s()
    clock.now_s += 630.0
    stops.STOPS.total_s += 600.0
    assert working_s() - start_s == pytest.approx(30.0)


@pytest.mark.parametrize("is_at_the_end", [False, True])
def test_a_stop_is_seen_where_the_process_works_itself_and_waits_for_nobody(monkeypatch, is_at_the_end):
    clock, seen = Clock(100.0), Stops()
    monkeypatch.setattr(stops, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(stops, "STOPS", seen)
    monkeypatch.setattr(stops, "_PIECE_S", 60.0 if is_at_the_end else 0.001)
    with seeing_stops():
        clock.now_s += 600.0
        for _ in range(0 if is_at_the_end else 10_000):
            if seen.total_s:
                break
            Event().wait(0.001)
    assert seen.total_s == pytest.approx(600.0, abs=60.0)
    clock.now_s += 600.0
    assert seen.total_s == pytest.approx(600.0, abs=60.0), "nobody looks any more"
