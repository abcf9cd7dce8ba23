"""A made-up machine and record on disk, as calibration and recording would leave them."""

import pytest

from hwprofiles.profile import save_profile
from tests.planner.synthetic import acceptance_record, machine


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
