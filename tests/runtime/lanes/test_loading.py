"""Small drafters stay in a lane, so that schedules which take turns load each once; large ones go."""

import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.drafters.registry import find_drafter
from runtime.lanes.lane import Reply
from runtime.worker import server, torch_models
from runtime.worker.server import LaneServer
from tests.runtime.engine.schedules import PROMPT, SCHEDULES
from tests.runtime.thread_lanes import thread_engine


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads drafters of so many bytes into a lane with room for 100, and says what was kept and what was loaded."""
    monkeypatch.setattr(server, "KEPT_BYTES", 100)
    lane, loaded = LaneServer(None), list[str]()

    def load_drafter(_target, folder, _dtype):
        loaded.append(folder.name)
        return SimpleNamespace(feature_layers=(), raw_features=False, methods=(), num_streams=0)

    lane._models = SimpleNamespace(load_drafter=load_drafter)

    def load(**sizes):
        loaded.clear()
        for name, num_bytes in sizes.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "model.safetensors").write_bytes(bytes(num_bytes))
            kept = lane.load_draft(tmp_path, tmp_path / name, "float32").kept
        return [folder.name for folder in kept], [*loaded]

    return load


def test_drafters_not_asked_for_for_longest_make_room_and_a_large_one_is_not_kept(load):
    assert load(one=40, two=40) == (["one", "two"], ["one", "two"])
    assert load(one=40) == (["two", "one"], [])
    assert load(three=40) == (["one", "three"], ["three"])
    assert load(large=101) == ([], ["large"])


@pytest.fixture
def loaded(monkeypatch):
    """Names of the drafters loaded, in order."""
    names, load = [], torch_models.load_drafter

    def counted(folder, context):
        names.append(folder.name)
        return load(folder, context)

    monkeypatch.setattr(torch_models, "load_drafter", counted)
    return names


def test_schedules_that_take_turns_load_each_drafter_once_and_write_the_same_text(tiny_folders, loaded):
    schedules = [
        SCHEDULES["speculative"].model_copy(update={"drafter": str(folder)})
        for folder in (tiny_folders.drafter, tiny_folders.feature_drafter)
    ]
    lanes = tuple(dict.fromkeys((schedules[0].target_lane, schedules[0].draft_lane)))
    with thread_engine(tiny_folders.target, dtype="float32", lanes=lanes) as engine:
        texts = [
            engine.generate(schedule, PROMPT, max_new_tokens=16, eos_token_ids=()).tokens for schedule in 3 * schedules
        ]
    assert len(set(texts)) == 1
    assert loaded == [tiny_folders.drafter.name, tiny_folders.feature_drafter.name]


def test_a_draft_that_is_not_kept_goes_before_the_next_is_loaded(tiny_folders, monkeypatch):
    """A lane's memory is counted by the draft at work and those that are kept."""
    schedule, there, load = SCHEDULES["speculative"], [], torch_models.load_drafter
    drafts: list[weakref.ref] = []

    def noted(folder, context):
        there.append([draft() is not None for draft in drafts])
        drafts.append(weakref.ref(loaded := load(folder, context)))
        return loaded

    monkeypatch.setattr(torch_models, "load_drafter", noted)
    monkeypatch.setattr(server, "KEPT_BYTES", 0)
    with thread_engine(tiny_folders.target) as engine:
        for folder in (tiny_folders.drafter, tiny_folders.feature_drafter, tiny_folders.drafter):
            named = schedule.model_copy(update={"drafter": str(folder)})
            engine.generate(named, PROMPT, max_new_tokens=8)
    assert there == [[], [False], [False, False]]


def test_a_drafter_whose_loading_was_interrupted_does_not_draft_for_the_one_before(tiny_folders):
    """The lane goes on loading: what it has then is not what it had last answered for."""
    first, second = map(str, (tiny_folders.drafter, tiny_folders.feature_drafter))

    def interrupted(*_):
        raise KeyboardInterrupt

    with thread_engine(tiny_folders.target, lanes=("small",)) as engine:
        lane = engine.load_draft("small", first)
        wanted = lane.server._measure.drafter
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reply, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.load_draft("small", second)
        engine.load_draft("small", first)
        lane.request(LaneServer.ping).result()
        assert lane.server._measure.drafter is wanted


ROOT = Path(__file__).parents[3]
COMPILER = {"torch._dynamo", "sympy"}
_LOAD = """
import sys
import weakref
from pathlib import Path
from runtime.backends.lane_device import Device
from runtime.worker.server import LaneServer

target, exits, drafter = map(Path, sys.argv[2:])
server = LaneServer(None, Device.of_lane(sys.argv[1]))
server.load_target(target, exits, "float32")
server.load_draft(target, drafter, "float32")
"""
_MAKE = """
import sys, torch
from runtime.drafters.eagle.model import Eagle1, Eagle3
from runtime.drafters.hydra import HydraConfig, HydraModel
from runtime.drafters.medusa import MedusaConfig, MedusaModel
from tests.tiny_models import tiny_config

config = tiny_config()
with torch.device("meta"):
    Eagle1(config, 8)
    Eagle3(config, 8, 3)
    HydraModel(config, HydraConfig(num_heads=2, prefix_width=6, head_width=8, shared_widths=(10,)))
    MedusaModel(config.hidden_size, MedusaConfig(num_heads=2, num_blocks=1))
"""


def test_models_are_loaded_and_heads_made_without_the_compiler_of_torch(tiny_folders):
    """It takes as long to import as torch, and torch asks for it to draw or count on the meta device."""
    folders = tiny_folders.target, tiny_folders.exits, tiny_folders.feature_drafter
    assert imported_by(_LOAD + _MAKE, "cpu", *map(str, folders)).isdisjoint(COMPILER)


@pytest.mark.parametrize("drafter", ["feature_drafter", "prompt-lookup"])
def test_a_lane_of_graphs_drafts_by_models_of_its_own_and_by_text_without_torch(tiny_folders, drafter):
    folder = getattr(tiny_folders, drafter, None) or find_drafter(drafter)
    folders = tiny_folders.target, tiny_folders.exits, folder
    assert "torch" not in imported_by(_LOAD, "openvino:CPU", *map(str, folders))


def imported_by(code, *arguments):
    """What a process has imported that runs this code."""
    command = [sys.executable, "-c", f"{code}\nprint(*sys.modules)", *arguments]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
