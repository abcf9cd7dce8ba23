"""Tiny models gain nothing from threads, and lose a lot where cores are busy."""

import pytest
import torch

from tests.runtime.tiny_folders import TinyFolders, save_draft_of, save_exits_of, save_target
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
    root = tmp_path_factory.mktemp("tiny")
    target = tiny_target()
    return TinyFolders(
        decoder=target,
        target=save_target(target, root / "target"),
        drafter=save_draft_of(target, root / "drafter"),
        feature_drafter=save_draft_of(target, root / "feature_drafter", exit_features=(1, 2)),
        exits=save_exits_of(target, root / "exits"),
    )
