"""A made-up machine and record on disk, as calibration and recording would leave them."""

import pytest

from hwprofiles.profile import save_profile
from runtime.lanes import lane_set
from tests.planner.synthetic import acceptance_record, machine
from tests.runtime.thread_lanes import ThreadLane


@pytest.fixture
def profile_path(tmp_path):
    path = tmp_path / "profile.yaml"
    save_profile(machine(), path)
    return path


@pytest.fixture
def record_path(tmp_path):
    path = tmp_path / "record.npz"
    acceptance_record(num_prompts=3, num_tokens=40).save(path)
    return path


@pytest.fixture
def in_threads(monkeypatch):
    """Lanes are threads of this process."""
    monkeypatch.setattr(lane_set, "Lane", ThreadLane)
