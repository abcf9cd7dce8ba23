"""What counts as a stop of this process, and the clock that leaves stops out."""

from types import SimpleNamespace

import pytest

from runtime.wire import stops
from runtime.wire.stops import Stops, working_s
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
