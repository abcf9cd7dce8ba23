import json

import pytest

from tests.benchmarks.scripts import load_script


@pytest.fixture
def script():
    return load_script("_drafters_table")


def test_every_setting_has_a_row_and_what_was_not_measured_a_dash(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "DRAFTERS", tmp_path / "drafters")
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    folder = tmp_path / "drafters" / "mine"
    folder.mkdir(parents=True)
    card = {"name": "mine", "num_bytes": 2_340_000, "num_training_tokens": 12_345, "training_minutes": 6.7}
    (folder / "card.json").write_text(json.dumps(card))
    untrained = tmp_path / "drafters" / "untrained"
    untrained.mkdir()
    for one in (folder, untrained):
        (one / "config.json").write_text("{}")
    for name, settings in {"one": {"chain": 1.234, "tree": 2.0}, "two": {"chain": 1.5}}.items():
        figures = {setting: {"mean_acceptance_length": mean} for setting, mean in settings.items()}
        result = {"num_prompts": 3, "max_new_tokens": 64, "drafters": {"mine": figures}}
        result["drafters"]["untrained"] = {"chain": {"mean_acceptance_length": 1.1}} if name == "one" else {}
        (tmp_path / f"acceptance-{name}.json").write_text(json.dumps(result))
    lines = script.table().splitlines()
    assert lines[0] == "`one`: 3 prompts, `two`: 3 prompts; up to 64 new tokens each."
    assert lines[4:] == [
        "| mine | 2.3 | 12,345 | 7 | chain | 1.23 | 1.50 |",
        "| mine | 2.3 | 12,345 | 7 | tree | 2.00 | - |",
        "| untrained | - | - | - | chain | 1.10 | - |",
    ]
