"""The cache folder is the user's to choose."""

from pathlib import Path

import pytest

from runtime.models.download_cache import cache_root, models_folder


def test_own_variable_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORSD_CACHE", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/somewhere")
    assert models_folder() == Path("/somewhere/models")


def test_then_the_desktop_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRRORSD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/mirrorsd")


def test_then_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRRORSD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_root() == Path("/home/someone/.cache/mirrorsd")
