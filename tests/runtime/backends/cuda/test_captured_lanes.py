"""Lanes on captured calls write the texts of eager torch, with every schedule; the CPU stands in for the GPU."""

import pytest

from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.lane_device import Device
from runtime.worker import torch_models
from tests.runtime.engine.schedules import CHAINS, PROMPT, SCHEDULES, for_folders
from tests.runtime.thread_lanes import thread_engine

NUM_TOKENS = 150
"""Enough to cross the first limit of slots."""


def generate(engine, folders):
    """What is written by every schedule of `CHAINS`, by its name."""
    chosen = {name: for_folders(SCHEDULES[name], folders) for name in CHAINS}
    return {
        name: engine.generate(schedule, PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=())
        for name, schedule in chosen.items()
    }


@pytest.fixture(scope="module")
def eager(long_folders):
    with thread_engine(long_folders.target, exits_folder=long_folders.exits) as engine:
        return generate(engine, long_folders)


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


def test_every_schedule_does_the_rounds_and_writes_the_text_of_eager_torch(long_folders, eager, captured):
    with thread_engine(long_folders.target, exits_folder=long_folders.exits) as engine:
        found = generate(engine, long_folders)
    assert len(captured) > 2
    assert len(set(eager["speculative"].tokens)) > 5
    for name in CHAINS:
        assert found[name].tokens == eager[name].tokens, name
        rounds = [[one.num_accepted for one in result.trace.rounds] for result in (found[name], eager[name])]
        assert rounds[0] == rounds[1], name
