"""A lane of two ranks is calibrated and predicted like any other."""

from calibrate.profiling.model_sizes import ModelSizes
from calibrate.profiling.task import CalibrationTask
from costs.cost_model import cost_of
from costs.prices import pass_s
from decoding.schedule import Schedule
from hwprofiles.host import LaneCores
from hwprofiles.profile import load_profile
from mirrorsd.lane_choice import profile_lanes
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.models.config import ModelConfig
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.evaluator import Evaluator
from tests.calibrate.tiny_calibration import calibrate_tiny

GROUP = "one-2ranks"


def test_a_group_gives_the_profile_of_a_lane(tiny_folders, tmp_path, forked_lanes):
    sizes = ModelSizes.of(
        ModelConfig.from_folder(tiny_folders.target), tiny_folders.drafter, tiny_folders.exits, "float32"
    )
    task = CalibrationTask(
        target="tiny",
        drafter="drafter",
        sizes=sizes,
        lanes=tuple(LaneCores(name=name, cores=()) for name in (GROUP, "two")),
        exit_layers=(2,),
        contexts=(4, 40),
        max_window=3,
        max_tree=0,
        quick=True,
        time_s=0.0,
    )
    specs = [LaneSpec(name=lane.name) for lane in task.lanes]
    with Engine(
        tiny_folders.target,
        lanes=specs,
        drafter_folder=tiny_folders.drafter,
        exits_folder=tiny_folders.exits,
        dtype="float32",
    ) as engine:
        calibrate_tiny(engine, task).save(tmp_path / "profile.yaml")
    profile = load_profile(tmp_path / "profile.yaml")
    group = profile.lane(GROUP)
    assert pass_s(cost_of(group), 4, 2, 4) > 0
    assert group.exit[2].at(4, 4) > 0
    assert group.draft_step.at(1, 4) > 0
    texts = Texts(num_texts=2, prompt_length=6, num_tokens=12)
    split = {"target_lane": GROUP, "draft_lane": "two", "num_speculative_tokens": 2}
    schedules = (
        Schedule(method="autoregressive", target_lane=GROUP),
        Schedule(method="speculative", **split),
        Schedule(method="mirror", root_source="draft", draft_top_k=2, **split),
    )
    evaluator = Evaluator(profile, Bernoulli(0.7, texts=texts, alternative_rates=(0.1, 0.2)))
    assert all(evaluator.tpot_s(schedule) > 0 for schedule in schedules)
    assert [(one.name, one.num_ranks) for one in profile_lanes(profile)] == [(GROUP, 2), ("two", 1)]
