import pytest

from decoding.errors import ModelError
from runtime.drafters import registry
from runtime.drafters.registry import find_drafter, shipped_names


@pytest.fixture(autouse=True)
def shipped_folder(tmp_path, monkeypatch):
    """Two drafters ship, and a folder that was never finished."""
    folder = tmp_path / "drafters"
    for name in ("small-exits", "small-draft4"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
    (folder / "unfinished").mkdir()
    monkeypatch.setattr(registry, "SHIPPED_FOLDER", folder)
    return folder


def test_a_drafter_is_found_by_the_name_that_ships_or_by_its_path(shipped_folder, tmp_path):
    assert shipped_names() == ("small-draft4", "small-exits")
    assert find_drafter("small-draft4") == shipped_folder / "small-draft4"
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text("{}")
    assert find_drafter(str(own)) == own


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("medium-draft4", r"'medium-draft4' is not a shipped drafter \(small-draft4, small-exits\), and there is no"),
        (".", r"'\.' is not a shipped drafter .*, and the folder has no config.json"),
    ],
)
def test_a_drafter_that_is_nowhere_is_answered_with_the_names_there_are(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        find_drafter(name)


def test_nothing_ships_with_a_package_that_has_no_drafters(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "SHIPPED_FOLDER", tmp_path / "absent")
    with pytest.raises(ModelError, match=r"not a shipped drafter \(none\)"):
        find_drafter("small-draft4")
