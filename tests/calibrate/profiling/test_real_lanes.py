"""Calibration of real lane processes with tiny models: what comes out is whole, whatever the times are."""

from pathlib import Path

from calibrate.profiling.fitted_profile import fitted_profile
from calibrate.profiling.model_sizes import ModelSizes
from calibrate.profiling.samples import load_samples
from calibrate.profiling.task import CalibrationTask
from costs.cost_model import cost_of
from costs.prices import pass_s
from hwprofiles.host import LaneCores
from hwprofiles.profile import load_profile
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.models.config import ModelConfig
from tests.calibrate.tiny_calibration import calibrate_tiny
from tests.runtime.drafters.folders.kinds import save_head
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_models import tiny_target


def test_two_real_lanes_give_a_profile_of_every_part(tmp_path, forked_lanes):
    """Heads that ship with others are named by their folders."""
    decoder = tiny_target()
    target = save_target(decoder, tmp_path / "target")
    drafter = save_draft_of(decoder, tmp_path / "drafter", exit_features=(1, 2))
    exits = save_exits_of(decoder, tmp_path / "exits")
    eagle, streams = str(tmp_path / "eagle"), str(tmp_path / "streams")
    save_head("eagle3", decoder, Path(eagle), sizes={"num_taps": 2}, feature_layers=(1, 3))
    save_head("streams", decoder, Path(streams), paths=((0,), (1,), (0, 0)))
    lanes = tuple(LaneCores(name=name, cores=()) for name in ("one", "two"))
    task = CalibrationTask(
        target="tiny",
        drafter="drafter",
        sizes=ModelSizes.of(ModelConfig.from_folder(target), drafter, exits, "float32"),
        lanes=lanes,
        exit_layers=(2, 3),
        contexts=(4, 40),
        max_window=3,
        heads={eagle: "eagle3", streams: "speculative_streaming"},
        max_tree=12,
        quick=True,
        time_s=0.0,
    )
    specs = [LaneSpec(name=lane.name) for lane in lanes]
    with Engine(target, lanes=specs, drafter_folder=drafter, exits_folder=exits, dtype="float32") as engine:
        calibration = calibrate_tiny(engine, task)
    profile = calibration.save(tmp_path / "profile.yaml")
    assert load_profile(tmp_path / "profile.yaml") == profile
    again = fitted_profile(task, load_samples(tmp_path / profile.samples))
    assert profile.notes[-len(again.notes) :] == again.notes, "how exact lanes are is told before"
    facts = {"samples": None, "calibration_s": 0.0, "is_row_invariant": None}
    assert again == profile.model_copy(update=facts | {"host": again.host, "notes": again.notes})
    assert profile.features_bytes_per_row == 2 * 16 * 4
    assert [pair.lanes for pair in profile.contention] == [("one", "two"), ("two", "one")]
    for lane in profile.lanes:
        assert lane.dispatch_s > 0
        assert sorted(lane.exit) == [2, 3]
        for table in (lane.layer, lane.draft_step, lane.draft_step_features):
            assert table is not None
            assert table.rows[0] == 1
            assert (table.contexts[0], table.contexts[-1]) == (0, 40)
        assert all(seconds > 0 for line in lane.draft_step.seconds for seconds in line)
        assert (lane.layer.rows[-1], lane.draft_step.rows[-1]) == (13, 32 + 3)
        assert lane.heads[eagle].at(4, 40) > 0
        if f"{streams} on {lane.name}" not in " ".join(profile.notes):
            assert lane.streams[streams].rows == (1, 13)
        verify_s = pass_s(cost_of(lane), 4, 2, 4)
        assert verify_s > 0
