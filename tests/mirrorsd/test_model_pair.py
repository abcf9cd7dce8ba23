import json
from pathlib import Path

import pytest

from decoding.errors import ModelError, ModelFormatError
from mirrorsd.model_pair import find_pair


def test_what_is_named_is_found_and_paths_become_lasting(tiny_folders, monkeypatch):
    monkeypatch.chdir(tiny_folders.target.parent)
    pair = find_pair("target", drafter="drafter", exits="exits", dtype="float32")
    assert (pair.target, pair.dtype) == ("target", "float32")
    assert (pair.drafter.name, pair.exits.name) == (str(tiny_folders.drafter), str(tiny_folders.exits))
    assert pair.drafter.folder.samefile(tiny_folders.drafter)


def test_the_folder_of_a_training_run_leads_to_its_drafter(tiny_folders, tmp_path, monkeypatch):
    (tmp_path / "my-draft").mkdir()
    (tmp_path / "my-draft" / "drafter").symlink_to(tiny_folders.drafter)
    monkeypatch.chdir(tmp_path)
    pair = find_pair(tiny_folders.target, drafter="my-draft")
    assert pair.drafter == (str(tiny_folders.drafter), Path("my-draft/drafter"))


def test_a_target_without_shipped_drafters_has_prompt_lookup_which_any_target_has(tiny_folders):
    pair = find_pair(str(tiny_folders.target))
    assert (pair.drafter, pair.exits, pair.head_methods) == (None, None, {"prompt-lookup": "prompt_lookup"})


def test_any_model_may_be_the_draft(tiny_folders, monkeypatch):
    monkeypatch.chdir(tiny_folders.target.parent)
    assert find_pair("target", drafter="target").drafter == (str(tiny_folders.target.resolve()), Path("target"))
    assert find_pair("target", drafter="smollm2-135m-instruct").drafter.name == "smollm2-135m-instruct"


def test_a_pair_may_be_asked_to_have_no_draft_model(tiny_folders, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.drafters.shipped.SHIPPED_FOLDER", tmp_path)
    ship(tmp_path, "one-draft", tiny_folders.drafter, tiny_folders.target.name)
    assert find_pair(tiny_folders.target, drafter="none").drafter is None


def test_what_ships_for_a_target_is_taken_without_being_named(tiny_folders, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.drafters.shipped.SHIPPED_FOLDER", tmp_path)
    ship(tmp_path, "one-draft", tiny_folders.drafter, tiny_folders.target.name)
    ship(tmp_path, "one-exits", tiny_folders.exits, tiny_folders.target.name)
    pair = find_pair(str(tiny_folders.target))
    assert pair.drafter == ("one-draft", tmp_path / "one-draft")
    assert pair.exits == ("one-exits", tmp_path / "one-exits")


def ship(root, name, source, target):
    folder = root / name
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = target
    (folder / "config.json").write_text(json.dumps(config))


def test_all_heads_that_ship_for_a_target_are_taken(tiny_folders, head_folders, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.drafters.shipped.SHIPPED_FOLDER", tmp_path)
    target = tiny_folders.target.name
    for name, source in head_folders.items():
        ship(tmp_path, f"of-{name}", source, target)
    ship(tmp_path, "a-draft", tiny_folders.drafter, target)
    ship(tmp_path, "of-another", head_folders["medusa"], "another")
    pair = find_pair(str(tiny_folders.target))
    assert pair.drafter.name == "a-draft"
    assert pair.heads == tuple((f"of-{name}", tmp_path / f"of-{name}") for name in ("eagle", "medusa", "streams"))
    assert [pair.head_for(method) for method in ("medusa", "hydra", "eagle2", "speculative_streaming")] == [
        "of-medusa",
        None,
        "of-eagle",
        "of-streams",
    ]
    assert find_pair(str(tiny_folders.target), heads=()).heads == ()
    assert [head.name for head in find_pair(str(tiny_folders.target), heads=["of-medusa"]).heads] == ["of-medusa"]


def test_heads_that_are_named_as_folders_become_lasting(tiny_folders, head_folders, monkeypatch):
    monkeypatch.chdir(tiny_folders.target.parent)
    pair = find_pair("target", heads=["streams", "medusa"])
    assert [head.name for head in pair.heads] == [str(head_folders["streams"]), str(head_folders["medusa"])]


def test_a_draft_language_model_is_no_head(tiny_folders):
    with pytest.raises(ModelFormatError, match="is not a head: .*mirrorsd_draft.*, expected mirrorsd_medusa"):
        find_pair(str(tiny_folders.target), heads=[str(tiny_folders.drafter)])


def test_a_drafter_is_not_taken_for_exits(tiny_folders):
    with pytest.raises(ModelFormatError, match="is not exit adapters: .*mirrorsd_draft"):
        find_pair(str(tiny_folders.target), exits=str(tiny_folders.drafter))


def test_a_drafter_that_is_nowhere_lists_what_ships(tiny_folders):
    with pytest.raises(ModelError, match="'nowhere' is not a shipped drafter"):
        find_pair(str(tiny_folders.target), drafter="nowhere")


def test_a_damaged_configuration_is_named(tiny_folders, tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFormatError, match=r"config\.json: cannot be read as JSON"):
        find_pair(str(tiny_folders.target), drafter=str(tmp_path))
