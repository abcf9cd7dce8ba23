"""Calibration of real lane processes with tiny models: what comes out is whole, whatever the times are."""

from pathlib import Path

from calibrate.profile import CalibrationTask, calibrate
from calibrate.sizes import ModelSizes
from hwprofiles.host import LaneCores
from hwprofiles.profile import load_profile, save_profile
from runtime.generate import Engine
from runtime.lane import LaneSpec
from runtime.models.config import ModelConfig
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_models import tiny_target


def test_two_real_lanes_give_a_profile_of_every_part(tmp_path: Path) -> None:
    decoder = tiny_target()
    target = save_target(decoder, tmp_path / "target")
    drafter = save_draft_of(decoder, tmp_path / "drafter", exit_features=(1, 2))
    exits = save_exits_of(decoder, tmp_path / "exits")
    lanes = tuple(LaneCores(name=name, cores=(), num_threads=1) for name in ("one", "two"))
    task = CalibrationTask(
        target="tiny",
        drafter="drafter",
        sizes=ModelSizes.of(ModelConfig.from_folder(target), drafter, exits, "float32"),
        lanes=lanes,
        exit_layers=(2, 3),
        contexts=(4, 40),
        max_window=3,
        quick=True,
    )
    specs = [LaneSpec(name=lane.name) for lane in lanes]
    with Engine(target, lanes=specs, drafter_folder=drafter, exits_folder=exits, dtype="float32") as engine:
        profile = calibrate(engine, task)
    save_profile(profile, tmp_path / "profile.yaml")
    assert load_profile(tmp_path / "profile.yaml") == profile
    assert profile.features_bytes_per_row == 2 * 16 * 4
    assert [pair.lanes for pair in profile.contention] == [("one", "two"), ("two", "one")]
    for lane in profile.lanes:
        assert lane.dispatch_s > 0
        assert sorted(lane.exit) == [2, 3]
        for table in (lane.layer, lane.draft_step, lane.draft_step_features):
            assert table is not None
            assert table.rows[0] == 1
            assert (table.contexts[0], table.contexts[-1]) == (4, 40)
        assert all(seconds > 0 for line in lane.draft_step.seconds for seconds in line)
        verify_s = 4 * lane.layer.at(2, 4) + lane.head.at(2, 4)
        assert verify_s > 0
