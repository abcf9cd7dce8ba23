"""Calibration of lanes of compiled graphs: every part of a target, its draft and a head is timed."""

from calibrate.profiling.model_sizes import ModelSizes
from calibrate.profiling.task import CalibrationTask
from hwprofiles.host import LaneCores
from hwprofiles.profile import load_profile
from runtime.drafters.medusa.folder import save_medusa
from runtime.models.config import ModelConfig
from tests.calibrate.tiny_calibration import calibrate_tiny
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_heads import tiny_medusa
from tests.tiny_models import tiny_target

LANES = ("openvino:CPU@0", "openvino:CPU@1")
LEFT_OUT = "streams are left out: a reason."


def test_two_compiled_lanes_give_a_profile_of_every_part(tmp_path, monkeypatch) -> None:
    """Wide enough for its layers to cost more than what lies around them."""
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "cache"))
    decoder = tiny_target(hidden_size=256, intermediate_size=512, num_heads=8, num_kv_heads=8, head_dim=32)
    folders = {
        "target_folder": save_target(decoder, tmp_path / "target"),
        "drafter_folder": save_draft_of(decoder, tmp_path / "drafter"),
        "exits_folder": save_exits_of(decoder, tmp_path / "exits", layers=(2,)),
    }
    target, drafter, exits = folders.values()
    medusa, paths = str(tmp_path / "medusa"), ((0,), (1,), (0, 0))
    save_medusa(tiny_medusa(decoder), paths, tmp_path / "medusa", target=decoder, target_name="tiny", metadata={})
    task = CalibrationTask(
        target="tiny",
        drafter="drafter",
        sizes=ModelSizes.of(ModelConfig.from_folder(target), drafter, exits, "int8"),
        lanes=tuple(LaneCores(name=name, cores=(), num_threads=1) for name in LANES),
        exit_layers=(2,),
        contexts=(4, 20),
        max_window=2,
        max_branches=2,
        heads={medusa: "medusa"},
        max_tree=3,
        quick=True,
        time_s=0.0,
        left_out=(LEFT_OUT,),
    )
    with thread_engine(lanes=LANES, dtype="int8", **folders) as engine:
        calibration = calibrate_tiny(engine, task)
    profile = calibration.save(tmp_path / "profile.yaml")
    assert load_profile(tmp_path / "profile.yaml") == profile
    assert (profile.dtype, profile.is_row_invariant) == ("int8", True)
    assert profile.host["openvino"]
    assert LEFT_OUT in profile.notes
    assert [(lane.name, lane.device) for lane in profile.lanes] == [(name, "openvino:CPU") for name in LANES]
    for lane in profile.lanes:
        for table in (lane.layer, lane.lm_head, lane.draft_step):
            assert table is not None
            assert all(seconds > 0 for line in table.seconds for seconds in line)
        assert lane.heads[medusa].at(1, 4) > 0
        assert set(lane.exit) == {2}
