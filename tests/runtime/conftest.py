"""Tiny models in folders, as the runtime loads them."""

import pytest

from tests.runtime.tiny_folders import save_all
from tests.tiny_models import tiny_target


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    """Folders of a tiny target, of its drafts without and with features, and of its exits."""
    return save_all(tiny_target(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def long_folders(tmp_path_factory):
    """The same for texts that outgrow buffers."""
    return save_all(tiny_target(max_position=1200), tmp_path_factory.mktemp("long"))
