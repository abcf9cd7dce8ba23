"""Heads and streams of a machine whose laws are known."""

from dataclasses import replace

import pytest

from calibrate.profiling.calibration import calibrate as calibrate_all
from calibrate.profiling.fitted_profile import fitted_profile
from decoding.errors import ProfileError
from tests.calibrate.profiling.calibration.asked import HEADS, SPEEDS, TOLERANCE, calibrate, machine, task
from tests.calibrate.profiling.fake_machine.heads import LEVEL, STREAMS_S, HeadEngine
from tests.calibrate.profiling.fake_machine.laws import Laws


@pytest.mark.parametrize("quick", [True, False])
def test_heads_streams_and_wide_trees_follow_their_laws_on_every_lane(quick):
    engine = HeadEngine({name: Laws(speed=speed) for name, speed in SPEEDS.items()})
    profile = calibrate(engine, task(heads=HEADS, quick=quick))
    for lane in profile.lanes:
        laws = engine.laws[lane.name]
        for rows in (1, 9, 17, 33):
            for context in (20, 150):
                verify_s = lane.verify_s(10, rows, context)
                expected_s = 10 * laws.layer_s(rows, context) + laws.head_s(rows)
                assert verify_s == pytest.approx(expected_s, **TOLERANCE)
        for name in ("eagle", "medusa"):
            expected_s = LEVEL * engine.head_s(name, 8) / SPEEDS[lane.name]
            assert lane.heads[name].at(8, 100) == pytest.approx(expected_s, **TOLERANCE)
        assert lane.streams["streams"].at(33, 100) == pytest.approx(STREAMS_S / SPEEDS[lane.name], **TOLERANCE)
        assert lane.draft_step.at(7, 150) == pytest.approx(laws.step_s(7, 150), **TOLERANCE)
    assert profile.relative_error == pytest.approx(0, abs=1e-6)


def test_streams_that_seem_to_cost_nothing_are_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr("tests.calibrate.profiling.fake_machine.heads.STREAMS_S", -1e-3)
    engine = HeadEngine({name: Laws(speed=speed) for name, speed in SPEEDS.items()})
    profile = calibrate(engine, task(heads=HEADS))
    assert all(lane.streams == {} for lane in profile.lanes)
    assert profile.lane("cpu0").heads.keys() == {"eagle", "medusa"}
    assert profile.notes[0] == (
        "What streams add was less than the noise, so they are left out: streams on cpu0, streams on cpu1, "
        "streams on cpu0+1."
    )


@pytest.mark.parametrize(
    ("left", "power", "part"),
    [(10.0, 0, "layer"), (0.0, 0, "lm_head")],
    ids=["heads that take longer than whole verifications", "heads that take no time"],
)
def test_a_necessary_part_that_costs_nothing_is_an_error(left, power, part):
    asked = task(quick=False)
    samples = calibrate_all(machine(), asked).samples
    noisy = [
        replace(visit, seconds=(left * visit.before_s * visit.cell.measurement.rows**power,))
        if visit.cell.measurement.part == "lm_head"
        else visit
        for visit in samples.visits
    ]
    with pytest.raises(ProfileError, match=rf"lane 'cpu0': {part} came out as costing nothing, .* calibrate again"):
        fitted_profile(asked, replace(samples, visits=noisy))


def test_streams_are_at_the_level_of_the_target_in_runs():
    engine = HeadEngine({name: Laws(speed=speed, target_in_run=1.04) for name, speed in SPEEDS.items()})
    profile = calibrate(engine, task(heads={"streams": "speculative_streaming"}))
    assert profile.lane("cpu0").streams["streams"].at(1, 20) == pytest.approx(1.04 * STREAMS_S, **TOLERANCE)
