"""Runs of a machine whose laws are known: what they take more than loops, lanes side by side, and what is left."""

from math import log

import pytest

from calibrate.fitting.levels import Level
from tests.calibrate.profiling.calibration.asked import TOLERANCE, calibrate, machine, pairs_of, task
from tests.calibrate.profiling.fake_machine.laws import GAP_S


def test_tables_are_at_the_level_of_real_runs():
    engine = machine(target_in_run=1.04, step_in_run=1.2, step_contended=1.2)
    profile = calibrate(engine, task(exit_features=(1, 3)))
    for lane in profile.lanes:
        laws = engine.laws[lane.name]
        assert lane.layer.at(3, 100) == pytest.approx(1.04 * laws.layer_s(3, 100), **TOLERANCE)
        assert lane.lm_head.at(3, 100) == pytest.approx(1.04 * laws.head_s(3), **TOLERANCE)
        assert lane.exit[6].at(3, 100) == pytest.approx(1.04 * laws.exit_s(3), **TOLERANCE)
        assert lane.draft_step.at(8, 100) == pytest.approx(1.2 * laws.step_s(8, 100), rel=2e-3)
        in_run = 1.2 * laws.step_s(4, 100, with_features=True)
        assert lane.draft_step_features.at(4, 100) == pytest.approx(in_run, rel=0.03)


def test_work_of_several_rows_has_a_level_of_its_own():
    engine = machine(target_in_run=1.02, several_in_run=1.08)
    for lane in calibrate(engine, task()).lanes:
        laws = engine.laws[lane.name]
        for rows, factor in ((1, 1.02), (3, 1.02 * 1.08)):
            assert lane.layer.at(rows, 100) == pytest.approx(factor * laws.layer_s(rows, 100), **TOLERANCE)
            assert lane.lm_head.at(rows, 100) == pytest.approx(factor * laws.head_s(rows), **TOLERANCE)


def test_first_steps_of_rollouts_have_an_overhead_of_their_own():
    engine = machine(step_in_run=1.2, first_step_s=2e-3)
    profile = calibrate(engine, task(exit_features=(1, 3)))
    for lane in profile.lanes:
        assert lane.overhead("first_step").seconds == pytest.approx(2e-3, rel=0.1)
        in_run = 1.2 * engine.laws[lane.name].step_s(1, 100)
        assert lane.draft_step.at(1, 100) == pytest.approx(in_run, rel=0.02)
    assert profile.relative_error == pytest.approx(0, abs=5e-3)


def test_slowdowns_are_measured_both_ways_round_and_relative_to_the_level_of_runs():
    profile = calibrate(machine(target_contended=1.1, step_contended=1.3, step_in_run=1.25), task())
    assert pairs_of(profile) == {
        ("cpu0", "cpu1"): pytest.approx((1.1, 1.3 / 1.25)),
        ("cpu1", "cpu0"): pytest.approx((1.1, 1.3 / 1.25)),
    }


def test_what_a_shared_level_is_off_by_is_common_and_what_an_own_one_is_the_lanes(monkeypatch):
    levels = {"cpu0": Level(1.0, 0.1), "cpu1": Level(1.0, 0.2, is_own=True), "cpu0+1": Level(1.0, 0.1)}
    monkeypatch.setattr("calibrate.profiling.run_levels.shared_levels", lambda _by_lane, _prior: levels)
    profile = calibrate(machine(), task())
    assert profile.relative_error == pytest.approx(0.1)
    assert [lane.relative_error for lane in profile.lanes] == pytest.approx([0.0, 0.2, 0.0])


def test_a_machine_that_keeps_its_laws_leaves_no_error():
    laws = {
        "target_in_run": 1.04,
        "step_in_run": 1.2,
        "target_contended": 1.1,
        "step_contended": 1.3,
        "prefix_more_s": 2e-3,
    }
    assert calibrate(machine(**laws), task()).relative_error == pytest.approx(0, abs=1e-3)


def test_the_error_is_that_of_runs_which_were_not_fitted():
    engine = machine(surprise=1.25)
    profile = calibrate(engine, task())
    assert profile.relative_error == pytest.approx(log(1.25), rel=1e-3)
    (note,) = profile.notes
    assert note.startswith("Calibration's own checks are off by more than 15 %: speculative with the target on ")
    assert "speculative with the target on cpu0 -20 %" in note
    assert profile.lane("cpu0").lm_head.at(1, 20) == pytest.approx(engine.laws["cpu0"].head_s(1), **TOLERANCE)


def test_the_driver_has_what_lies_between_verifications_beyond_the_dispatch():
    profile = calibrate(machine(), task())
    assert all(0 <= lane.dispatch_s < GAP_S / 2 for lane in profile.lanes)
    assert GAP_S / 2 < profile.round_overhead_s <= GAP_S


def test_contexts_too_few_for_a_second_round_leave_the_tables_as_timed():
    engine = machine(target_in_run=1.5)
    profile = calibrate(engine, task(contexts=(3, 4)))
    assert 0.01 < profile.relative_error < 0.05
    assert profile.round_overhead_s == 0
    assert profile.lane("cpu0").layer.at(2, 4) == pytest.approx(engine.laws["cpu0"].layer_s(2, 4))
