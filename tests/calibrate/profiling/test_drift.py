from collections.abc import Iterator

import pytest

from calibrate.profiling.drift import DriftWatch, drift_in_words
from runtime.wire.operations import Answer, Measure


class FakeLane:
    """A lane whose measurements take the given numbers of seconds, in order."""

    def __init__(self, *seconds: float) -> None:
        self._seconds: Iterator[float] = iter(seconds)

    def request(self, operation: Measure) -> "FakeLane":
        assert operation.measurement.rows == 1
        return self

    def result(self) -> Answer[list[float]]:
        taken = next(self._seconds)
        return Answer([taken, taken, 9.0], 0.0, 0.0)


def test_drift_compares_the_runs_with_both_sides_of_the_calibration() -> None:
    watch = DriftWatch({"a": FakeLane(1.0, 1.0, 1.1, 1.1), "b": FakeLane(2.0, 2.0, 1.0, 1.0)}, context=8)
    for stage in ("calibration", "calibration", "runs", "runs"):
        watch.look(stage)
    assert watch.drift() == pytest.approx({"a": 0.1, "b": -0.5})


def test_one_disturbed_look_does_not_count() -> None:
    watch = DriftWatch({"a": FakeLane(1.0, 1.0, 1.0, 7.0, 1.0)}, context=8)
    for stage in ("calibration", "calibration", "runs", "runs", "runs"):
        watch.look(stage)
    assert watch.drift() == pytest.approx({"a": 0.0})


def test_nothing_is_said_before_both_stages_were_looked_at() -> None:
    watch = DriftWatch({"a": FakeLane(1.0)}, context=8)
    watch.look("calibration")
    assert watch.drift() == {}


def test_drift_reads_as_signed_percent() -> None:
    assert "cpu0 +1.0 %, cpu1 -12.5 %" in drift_in_words({"cpu0": 0.01, "cpu1": -0.125})
