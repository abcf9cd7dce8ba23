"""Tiny models gain nothing from threads, and lose a lot where cores are busy."""

import pytest
import torch

from tests.runtime.tiny_folders import save_all
from tests.tiny_models import tiny_target


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    """Folders of a tiny target, of its drafts without and with features, and of its exits."""
    return save_all(tiny_target(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def long_folders(tmp_path_factory):
    """The same for texts that outgrow buffers."""
    return save_all(tiny_target(max_position=1200), tmp_path_factory.mktemp("long"))
