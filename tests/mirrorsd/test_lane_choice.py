"""Lanes by device, by name, or of a profile; and what of a pair stays behind where they cannot run it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrate.profiling.model_sizes import ModelSizes
from decoding.errors import ConfigError
from decoding.schedule import Schedule
from hwprofiles.host import lanes_of
from hwprofiles.profile import load_profile
from mirrorsd.lane_choice import all_lane_specs, chosen_lanes, fitted_to, profile_lanes, require_lanes, usual_device
from mirrorsd.model_pair import find_pair
from runtime.backends.devices import DeviceStatus
from runtime.drafters.language_model.folder import StreamConfig, add_streams, load_draft
from runtime.drafters.registry import named_drafter
from tests.runtime.drafters.language_model.test_draft_streams import with_streams

PROFILE = Path(__file__).parents[1] / "golden" / "profile.yaml"


def on(device, *, name=None):
    """A profile whose first lane is said to be on a device."""
    profile = load_profile(PROFILE)
    first = profile.lanes[0]
    lane = first.model_copy(update={"device": device, "name": name or first.name, "cores": ()})
    return profile.model_copy(update={"lanes": (lane,)})


def test_a_profile_of_a_device_never_runs_on_another_one():
    assert [spec.device.name for spec in profile_lanes(on("generic-cpu"))] == ["cpu"]
    with pytest.raises(ConfigError, match="lane 'cpu0' is on cuda:0 in the profile, but its name says cpu"):
        profile_lanes(on("cuda:0"))
    with pytest.raises(ConfigError, match="device 'cuda:7' is not there: this machine has no such device"):
        profile_lanes(on("cuda:7", name="cuda:7"))


@pytest.fixture
def pair(tiny_folders, head_folders):
    heads = [head_folders[name] for name in ("medusa", "streams")]
    return find_pair(tiny_folders.target, drafter=tiny_folders.drafter, exits=tiny_folders.exits, heads=heads)


def test_lanes_are_compiled_where_that_is_possible_and_torchs_elsewhere(pair, monkeypatch):
    forms = ("bfloat16", "float32", "int8", "int4")
    assert {usual_device(replace(pair, dtype=form)) for form in forms} == {"openvino:CPU"}
    assert {spec.device.name for spec in chosen_lanes(None, None, pair)} == {"openvino:CPU"}
    monkeypatch.setattr("runtime.backends.devices._openvino_devices", lambda: ())
    assert usual_device(pair) == "cpu"


@pytest.mark.parametrize("which", ["target_folder", "drafter"])
def test_a_pair_with_an_architecture_that_has_no_graph_is_torchs(pair, which, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["OPTForCausalLM"]}')
    other = {"target_folder": tmp_path, "drafter": pair.drafter._replace(folder=tmp_path)}
    assert usual_device(replace(pair, **{which: other[which]})) == "cpu"
    assert usual_device(replace(pair, drafter=None)) == "openvino:CPU"


@pytest.mark.skipif(len(lanes_of("cpu")) < 3, reason="lanes of parts need two cores, and this machine has one")
def test_lanes_may_be_named_one_by_one_and_of_several_devices(pair):
    found = chosen_lanes(None, "openvino:CPU@1, cpu0", pair)
    assert [(spec.name, spec.cores) for spec in found] == [
        (name, next(lane.cores for lane in lanes_of(device) if lane.name == name))
        for name, device in (("openvino:CPU@1", "openvino:CPU"), ("cpu0", "cpu"))
    ]
    assert [spec.name for spec in chosen_lanes("openvino:CPU", None, replace(pair, dtype="int8"))] == [
        lane.name for lane in lanes_of("openvino:CPU")
    ]


def test_the_second_process_of_a_gpu_is_a_lane_where_it_is_named(pair, monkeypatch):
    gpu = DeviceStatus(name="cuda:0", description="a GPU", forms=("bfloat16",))
    monkeypatch.setattr("runtime.backends.devices._cuda_devices", lambda: (gpu,))
    assert [spec.name for spec in chosen_lanes("cuda:0", None, pair)] == ["cuda:0"]
    assert [spec.name for spec in chosen_lanes(None, "cuda:0,cuda:0#2", pair)] == ["cuda:0", "cuda:0#2"]
    with pytest.raises(ConfigError, match="there is no lane 'cuda:0#3' here; the lanes of cuda:0 are cuda:0, cuda:0#2"):
        chosen_lanes(None, "cuda:0#3", pair)


@pytest.mark.parametrize(
    ("device", "names", "message"),
    [
        ("openvino", None, "device 'openvino' is not there: .* Devices here: cpu, openvino:CPU"),
        ("cpu", "cpu0", "give a device or lanes, not both: a lane's name says its device"),
        (None, "cpu9", "there is no lane 'cpu9' here; the lanes of cpu are cpu0"),
        (None, "openvino:CPU@99", "no lane 'openvino:CPU@99' here; the lanes of openvino:CPU are openvino:CPU@"),
        (None, " , ", "no lane is named; `mirrorsd devices` lists them"),
        ("cpu", None, "lane 'cpu' does not compute with int8; it does with bfloat16, float32"),
    ],
)
def test_what_is_no_lane_here_is_refused(pair, device, names, message):
    dtype = "int8" if (device, names) == ("cpu", None) else "bfloat16"
    with pytest.raises(ConfigError, match=message):
        chosen_lanes(device, names, replace(pair, dtype=dtype))


def test_streams_stay_behind_where_keys_are_not_open_and_are_named_with_the_reason(pair, head_folders):
    kept, said = fitted_to(pair, ["cpu", "openvino:CPU", "openvino:CPU"])
    assert kept == replace(pair, heads=pair.heads[:1])
    why = "streams read the KV cache, which lanes on openvino:CPU do not expose."
    assert said == (f"{head_folders['streams']} is left out: {why}",)
    assert fitted_to(pair, ["cpu"]) == (pair, ())


def test_a_draft_drafts_there_without_its_own_streams(pair, tmp_path, tiny_folders):
    sizes = StreamConfig(num_streams=2, start_layer=1, rank=2)
    model = with_streams(load_draft(tiny_folders.drafter, tiny_folders.decoder, dtype=torch.float32), sizes)
    add_streams(tiny_folders.drafter, model.streams, tmp_path / "draft", training={})
    own = replace(pair, heads=(), drafter=named_drafter(str(tmp_path / "draft")))
    kept, [said] = fitted_to(own, ["openvino:CPU"])
    assert kept == own
    assert said.startswith(f"{tmp_path / 'draft'} drafts without its own streams: streams read the KV cache")
    whole = ModelSizes.of(model.decoder.config, tmp_path / "draft", None, "int8")
    assert (whole.num_draft_streams, whole.without_draft_streams().num_draft_streams) == (2, 0)


def test_a_schedule_may_name_a_lane_of_any_device_that_is_there():
    names = [spec.name for spec in all_lane_specs()]
    assert {lane.name for device in ("cpu", "openvino:CPU") for lane in lanes_of(device)} <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("lane", "told"),
    [
        ("npu", r"no lane 'npu', only cpu0, .* openvino:NPU may run it: .*lanes: {npu: LANE}"),
        ("card", "cuda:0 or openvino:GPU may run it"),
        ("cuda:7", "'cuda:7' is not available: this machine has no such device"),
        ("openvino:CPU@99", r"no lane 'openvino:CPU@99', only cpu0, [^.]*$"),
    ],
)
def test_a_schedule_on_lanes_of_another_machine_is_refused_with_what_would_run_it(lane, told):
    with pytest.raises(ConfigError, match=told):
        require_lanes(Schedule(method="autoregressive", target_lane=lane), all_lane_specs())
