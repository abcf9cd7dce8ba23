"""How long calibration takes, and what it repeats in that time, by the clock of a machine whose laws are known."""

from collections import Counter

import pytest

from calibrate.profiling.lane_parts import OF_THE_TARGET
from hwprofiles.profile import Profile, load_profile, save_profile
from runtime.wire.measurement import Measurement
from tests.calibrate.profiling.fake_machine.asked import CONTEXTS, TOLERANCE, calibrate, machine, pairs_of, task
from tests.calibrate.profiling.fake_machine.engine import FakeEngine


def calibrated_in(time_s: float | None, *, quick: bool = True, slowness: float = 1.0) -> tuple[FakeEngine, Profile]:
    """A calibration by the machine's own clock, on a machine that much slower than usual."""
    engine = machine()
    for laws in engine.laws.values():
        laws.speed /= slowness
    return engine, calibrate(engine, task(quick=quick, time_s=time_s), clock=engine.clock)


def visits_by_cell(engine: FakeEngine, *, quick: bool) -> Counter:
    """How often every part was timed; anchors, prompts, lanes side by side and what follows texts are left out."""
    parts = [visit for visit in engine.visits if visit[1].warm_up == 1]
    found = Counter(visit for visit in parts if (visit[1].rows, visit[1].context) != (1, sum(CONTEXTS) // 2))
    shortest = Measurement(part="verify", rows=1, context=0, repeats=2 if quick else 3, warm_up=1)
    num_passes = min(found.values())
    for schedule in {schedule for schedule, *_ in engine.decoded}:
        found[schedule.target_lane, shortest] -= num_passes
    return found


def test_where_there_is_time_all_repeats_are_made_and_there_is_nothing_to_note():
    for quick, num_passes in ((True, 12), (False, 5)):
        engine, profile = calibrated_in(1000.0, quick=quick)
        assert set(visits_by_cell(engine, quick=quick).values()) == {num_passes}
        assert profile.notes == ()


def test_where_time_is_short_everything_is_timed_once_and_the_profile_says_so(tmp_path):
    engine, profile = calibrated_in(0.1)
    for (_, timed), count in visits_by_cell(engine, quick=True).items():
        assert count == (3 if timed.part in OF_THE_TARGET else 1)
    (note,) = profile.notes
    assert note.startswith("Calibration had 0.1 s, too few here for all repeats: ")
    assert note.endswith(": all parts but passes of the target were timed 1 of 2 times.")
    save_profile(profile, tmp_path / "p.yaml")
    assert load_profile(tmp_path / "p.yaml").notes == (note,)
    laws = engine.laws["cpu0"]
    assert profile.lane("cpu0").layer.at(5, 100) == pytest.approx(laws.layer_s(5, 100), **TOLERANCE)
    assert pairs_of(profile)["cpu0", "cpu1"] == pytest.approx((1.0, 1.0))


def test_a_quick_calibration_has_a_hundred_seconds_and_a_full_one_all_the_time_it_needs():
    slowness = 20.0
    assert calibrated_in(None, slowness=slowness)[1].notes != ()
    assert calibrated_in(1000.0, slowness=slowness)[1].notes == ()
    _, profile = calibrated_in(None, quick=False, slowness=slowness)
    assert profile.calibration_s > 100
    assert profile.notes == ()


def test_more_time_is_used_for_more_repeats_until_it_is_what_timing_may_take():
    limits_s = (0.1, 60, 80, 100, 130, 170, 250, 400)
    calibrations = [calibrated_in(limit_s, quick=False) for limit_s in limits_s]
    visits = [visits_by_cell(engine, quick=False) for engine, _ in calibrations]
    repeats = [{num for (_, of), num in found.items() if of.part not in OF_THE_TARGET} for found in visits]
    assert [len(found) for found in repeats] == [1] * len(limits_s)
    counts = [min(found) for found in repeats]
    assert counts == sorted(counts)
    of_target = [{num for (_, of), num in found.items() if of.part in OF_THE_TARGET} for found in visits]
    assert [len(found) for found in of_target] == [1] * len(limits_s)
    assert all(count <= min(found) <= 5 for count, found in zip(counts, of_target, strict=True))
    assert any(count < min(found) for count, found in zip(counts, of_target, strict=True)), "left time is of no use"
    assert (counts[0], counts[-1]) == (1, 5)
    assert len(set(counts)) > 3
    shortest_s = calibrations[0][0].clock()
    for limit_s, (engine, profile) in zip(limits_s, calibrations, strict=True):
        assert engine.clock() <= max(shortest_s, limit_s)
        assert profile.calibration_s == pytest.approx(engine.clock())
