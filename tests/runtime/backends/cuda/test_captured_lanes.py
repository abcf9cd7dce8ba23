"""Lanes on captured calls write the texts of eager torch, with every schedule; the CPU stands in for the GPU."""

import pytest

from decoding.schedule import Schedule
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.lane_device import Device
from runtime.worker import torch_models
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_models import tiny_target

PROMPT = [5, 17, 3, 44, 8]
NUM_TOKENS = 150
"""Enough to cross the first limit of slots."""
SPLIT = {"target_lane": "big", "draft_lane": "small"}
MIRROR = {"method": "mirror", "num_speculative_tokens": 3, **SPLIT}
SCHEDULES = {
    "speculative": Schedule(method="speculative", num_speculative_tokens=4, **SPLIT),
    "pooled": Schedule(method="speculative", num_speculative_tokens=3, target_lane="big", draft_lane="big"),
    "with features": Schedule(method="speculative", num_speculative_tokens=3, exit_features=True, **SPLIT),
    "mirror from the draft": Schedule(root_source="draft", draft_top_k=3, **MIRROR),
    "mirror from the exit": Schedule(root_source="exit", exit_layer=2, exit_top_k=4, **MIRROR),
    "hybrid mirror": Schedule(root_source="hybrid", exit_layer=3, exit_top_k=2, draft_top_k=2, **MIRROR),
    "mirror with features": Schedule(root_source="exit", exit_layer=2, exit_top_k=3, exit_features=True, **MIRROR),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    target = tiny_target(max_position=400)
    drafts = {
        False: save_draft_of(target, root / "drafter"),
        True: save_draft_of(target, root / "feature_drafter", exit_features=(1, 2)),
    }
    return save_target(target, root / "target"), save_exits_of(target, root / "exits"), drafts


def generate(engine, schedule, drafts):
    chosen = schedule
    if schedule.draft_lane is not None:
        chosen = schedule.model_copy(update={"drafter": str(drafts[schedule.exit_features])})
    return engine.generate(chosen, PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=())


@pytest.fixture(scope="module")
def eager(models):
    folder, exits, drafts = models
    with thread_engine(folder, exits_folder=exits) as engine:
        return {name: generate(engine, schedule, drafts) for name, schedule in SCHEDULES.items()}


@pytest.fixture
def captured(monkeypatch):
    """Lanes have the back end of a GPU, on the CPU, and are told what is to come as lanes that compile are."""
    made = []

    def opener(device, dtype, *, num_threads):
        def opened(decoder):
            made.append(CudaBackend(decoder, device="cpu"))
            return made[-1]

        return opened

    monkeypatch.setattr(torch_models, "backend_opener", opener)
    monkeypatch.setattr(Device, "prepares", property(lambda self: True))
    return made


def test_every_schedule_does_the_rounds_and_writes_the_text_of_eager_torch(models, eager, captured) -> None:
    folder, exits, drafts = models
    with thread_engine(folder, exits_folder=exits) as engine:
        found = {name: generate(engine, schedule, drafts) for name, schedule in SCHEDULES.items()}
    assert len(captured) > 2
    assert len(set(eager["speculative"].tokens)) > 5
    for name in SCHEDULES:
        assert found[name].tokens == eager[name].tokens, name
        rounds = [[one.num_accepted for one in result.trace.rounds] for result in (found[name], eager[name])]
        assert rounds[0] == rounds[1], name
