"""The verb with a tiny model; float32, so that every method writes the same text. Most lanes are threads."""

import pytest

from tests.mirrorsd.cli.calls import call
from tests.mirrorsd.cli.verbs.run.asked import SETTINGS


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Other programs on the machine would be warned of."""
    for look in ("so_far", "lately"):
        monkeypatch.setattr(f"hwprofiles.other_use.OtherUse.{look}", lambda _self: None)


@pytest.fixture
def words(tiny_folders):
    models = ("--target", tiny_folders.target, "--drafter", tiny_folders.drafter, "--exits", tiny_folders.exits)
    return ("run", *models, *SETTINGS)


@pytest.fixture
def run(words, in_threads):
    return lambda *more: call(*words, *more)
