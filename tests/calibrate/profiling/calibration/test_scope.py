"""What a calibration covers and says of itself: models, lanes, texts, file."""

import pytest

from calibrate.profiling.model_sizes import ModelSizes
from hwprofiles.profile import load_profile, save_profile
from runtime.wire.operations import RowInvariance
from tests.calibrate.profiling.calibration.asked import calibrate, machine, target_config, task
from tests.calibrate.profiling.fake_machine.engine import LANES


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


def test_texts_for_calibration_stay_within_the_contexts_that_were_measured():
    engine = machine()
    calibrate(engine, task(contexts=(3, 9)))
    assert all(length - 1 >= 3 and length - 1 + tokens - 1 <= 9 for _, length, tokens in engine.decoded)


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
