"""Calibration of a machine whose laws are known: tables, heads and streams, levels of runs and its scope."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from calibrate.fitting.levels import Level
from calibrate.profiling.calibration import calibrate as calibrate_all
from calibrate.profiling.fitted_profile import fitted_profile
from calibrate.profiling.model_sizes import ModelSizes
from costs.cost_model import cost_of
from costs.prices import pass_s
from decoding.errors import OutOfRangeError, ProfileError
from decoding.record import AcceptanceRecord
from hwprofiles.profile import load_profile, save_profile
from runtime.wire.operations import RowInvariance
from sim.evaluator import predict
from tests.calibrate.profiling.fake_machine.asked import (
    HEADS,
    SPEEDS,
    TOLERANCE,
    calibrate,
    machine,
    pairs_of,
    target_config,
    task,
    usual_profile,
)
from tests.calibrate.profiling.fake_machine.engine import LANES
from tests.calibrate.profiling.fake_machine.known_runs import MIRROR
from tests.calibrate.profiling.fake_machine.laws import GAP_S, GUESS_S, STEP_LEVEL
from tests.planner.synthetic import acceptance_record


@pytest.mark.parametrize("quick", [True, False])
def test_every_part_of_every_lane_follows_its_law(quick):
    engine = machine()
    profile = calibrate(engine, task(quick=quick))
    for lane in profile.lanes:
        laws = engine.laws[lane.name]
        for rows in (1, 2, 5, 6, 9):
            assert lane.lm_head.at(rows, 100) == pytest.approx(laws.head_s(rows), **TOLERANCE)
            for context in (20, 71, 220):
                assert lane.layer.at(rows, context) == pytest.approx(laws.layer_s(rows, context), **TOLERANCE)
            for layer in (4, 6):
                assert lane.exit[layer].at(rows, 0) == pytest.approx(laws.exit_s(rows), **TOLERANCE)
        for rows in (1, 7, 16, 32):
            assert lane.draft_step.at(rows, 150) == pytest.approx(laws.step_s(rows, 150), **TOLERANCE)
        assert lane.draft_step_features is None


def test_steps_with_features_have_a_table_of_their_own():
    engine = machine()
    profile = calibrate(engine, task(exit_features=(1, 3)))
    for lane in profile.lanes:
        laws = engine.laws[lane.name]
        assert lane.draft_step_features.at(1, 20) == pytest.approx(laws.step_s(1, 20), **TOLERANCE)
        for rows in (4, 9):
            with_features = laws.step_s(rows, 20, with_features=True)
            assert lane.draft_step_features.at(rows, 20) == pytest.approx(with_features, **TOLERANCE)
        for rows in (4, 9, 40):
            assert lane.draft_start.at(rows, 20) == pytest.approx(laws.start_s(rows, 20), **TOLERANCE)
    assert profile.features_bytes_per_row == 2 * 16 * 2


def wide_record(exit_features: tuple[int, ...] = ()) -> AcceptanceRecord:
    """A text that meets every context from the 20 of calibration on, and an exit with 65 ids per row."""
    usual = acceptance_record(num_prompts=1)
    prompt = replace(usual.prompts[0], prompt_length=21, exits={6: np.tile(np.arange(65, dtype=np.int32), (60, 1))})
    return replace(usual, exit_layers=(6,), feature_layers=exit_features, prompts=(prompt,))


@pytest.mark.parametrize(("exit_features", "roots"), [((), {"exit_top_k": 16}), ((1, 3), {"roots_per_row": (64,)})])
def test_as_many_branches_can_be_priced_as_were_asked_for(roots, exit_features):
    wanted = {"num_speculative_tokens": 3, "exit_top_k": 0, "exit_features": bool(exit_features), "drafter": "d"}
    schedule = MIRROR.model_copy(update=wanted | roots)
    wide = calibrate(machine(), task(exit_features=exit_features, max_branches=64))
    assert predict(schedule, wide, wide_record(exit_features)).tpot_s > 0
    if not exit_features:
        with pytest.raises(OutOfRangeError, match="more than 32 rows were not measured"):
            predict(schedule, usual_profile(), wide_record())


def test_streams_of_the_draft_are_timed_where_it_has_some_at_the_level_of_its_steps_in_runs():
    engine = machine(step_in_run=1.2)
    for lane in calibrate(engine, task(num_streams=2)).lanes:
        alone_s = GUESS_S / SPEEDS[lane.name]
        assert lane.draft_streams.rows == (1, 2, 16, 64)
        assert lane.draft_streams.at(1, 100) == pytest.approx(1.2 * 2 * alone_s, rel=0.02)
        assert lane.draft_streams.at(2, 100) == pytest.approx(1.2 * 3 * alone_s, rel=0.02)
    assert all(lane.draft_streams is None for lane in usual_profile().lanes)


@pytest.mark.parametrize("exit_features", [(), (1, 3)])
def test_as_many_branches_can_be_priced_with_streams_as_were_asked_for(exit_features):
    profile = calibrate(machine(), task(num_streams=3, exit_features=exit_features, max_branches=12))
    record = wide_record(exit_features)
    hits = np.zeros((60, record.max_window), dtype=np.int32)
    known = replace(record.prompts[0], stream_hits=hits, feature_stream_hits=hits)
    record = replace(record, num_streams=3, prompts=(known,))
    wanted = {"num_speculative_tokens": 5, "exit_features": bool(exit_features), "draft_streams": 3}
    schedule = MIRROR.model_copy(update=wanted)
    assert predict(schedule, profile, record).tpot_s > 0  # 12 branches of 4 rows each
    with pytest.raises(OutOfRangeError, match="more than .* rows were not measured"):
        predict(schedule.model_copy(update={"exit_top_k": 3}), profile, record)


@pytest.mark.parametrize("quick", [True, False])
def test_heads_streams_and_wide_trees_follow_their_laws_on_every_lane(quick):
    engine = machine()
    profile = calibrate(engine, task(heads=HEADS, quick=quick))
    for lane in profile.lanes:
        laws = engine.laws[lane.name]
        for rows in (1, 9, 17, 33):
            for context in (20, 150):
                verify_s = pass_s(cost_of(lane), 10, rows, context)
                expected_s = 10 * laws.layer_s(rows, context) + laws.head_s(rows)
                assert verify_s == pytest.approx(expected_s, **TOLERANCE)
        for name in ("eagle", "medusa"):
            expected_s = STEP_LEVEL * engine.head_s(name, 8) / SPEEDS[lane.name]
            assert lane.heads[name].at(8, 100) == pytest.approx(expected_s, **TOLERANCE)
        assert lane.streams["streams"].at(33, 100) == pytest.approx(engine.streams_s / SPEEDS[lane.name], **TOLERANCE)
        assert lane.draft_step.at(7, 150) == pytest.approx(laws.step_s(7, 150), **TOLERANCE)
    assert profile.relative_error == pytest.approx(0, abs=1e-6)


def test_streams_that_seem_to_cost_nothing_are_left_out_with_a_note():
    engine = machine()
    engine.streams_s = -1e-3
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
    engine = machine(target_in_run=1.04)
    profile = calibrate(engine, task(heads={"streams": "speculative_streaming"}))
    assert profile.lane("cpu0").streams["streams"].at(1, 20) == pytest.approx(1.04 * engine.streams_s, **TOLERANCE)


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
    profile = usual_profile()
    assert all(0 <= lane.dispatch_s < GAP_S / 2 for lane in profile.lanes)
    assert GAP_S / 2 < profile.round_overhead_s <= GAP_S


def test_contexts_too_few_for_a_second_round_leave_the_tables_as_timed():
    engine = machine(target_in_run=1.5)
    profile = calibrate(engine, task(contexts=(3, 4)))
    assert 0.01 < profile.relative_error < 0.05
    assert profile.round_overhead_s == 0
    assert profile.lane("cpu0").layer.at(2, 4) == pytest.approx(engine.laws["cpu0"].layer_s(2, 4))


def test_a_plain_target_is_calibrated_without_a_draft():
    sizes = ModelSizes(config=target_config(), draft=None, exits=None, dtype="float32")
    engine = machine(target_in_run=1.1)
    profile = calibrate(engine, task(drafter=None, sizes=sizes, exit_layers=()))
    assert profile.drafter is None
    assert {model for _, model in engine.loaded} == {"target"}
    assert all(lane.draft_step is None and lane.exit == {} for lane in profile.lanes)
    assert profile.links == profile.contention == ()
    assert profile.lane("cpu1").layer.at(9, 220) == pytest.approx(1.1 * engine.laws["cpu1"].layer_s(9, 220))
    assert profile.relative_error == pytest.approx(0, abs=1e-6)


def test_one_core_is_one_lane_that_runs_both_models():
    profile = calibrate(machine(), task(lanes=LANES[:1]))
    assert [lane.name for lane in profile.lanes] == ["cpu0"]
    assert profile.links == profile.contention == ()
    assert profile.lane("cpu0").draft_step is not None


def test_the_profile_says_where_it_is_from_and_survives_its_file(tmp_path):
    profile = calibrate(machine(), task(exit_features=(1, 3)))
    assert (profile.target, profile.drafter, profile.dtype, profile.num_layers) == ("t", "d", "bfloat16", 10)
    assert profile.host["cpu_model"]
    assert profile.calibration_s > 0
    assert profile.lane("cpu0").layer.bytes_per_call > 0
    assert [link.lanes for link in profile.links] == [("cpu0", "cpu1")]
    save_profile(profile, tmp_path / "p.yaml")
    assert load_profile(tmp_path / "p.yaml") == profile


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (RowInvariance(True, 1, ""), None),
        (RowInvariance(True, 2, "instructions up to X"), "exact, with calls padded to 2 rows, instructions up to X"),
        (RowInvariance(False, 1, ""), "not exact: texts may differ from plain decoding's in near ties"),
    ],
)
def test_the_profile_says_first_how_exact_lanes_are_and_what_that_took(rows, note):
    engine = machine()
    engine.rows = rows
    profile = calibrate(engine, task())
    assert profile.is_row_invariant == rows.is_invariant
    if note is None:
        assert not any("exact" in one for one in profile.notes)
    else:
        assert profile.notes[0] == f"Text on cpu0, cpu1, cpu0+1 is {note}."


@pytest.mark.parametrize("cpu1", ["1 cores", "cores of another kind"])
def test_one_lane_of_each_kind_tests_its_rows(cpu1):
    engine = machine()
    engine.kernels["cpu1"] = cpu1
    calibrate(engine, task())
    assert sorted(engine.kernels[lane] for lane in engine.rows_tested) == sorted({*engine.kernels.values()})
