import json
from pathlib import Path

import pytest

from mirrorsd.json_text import json_text, path_from


def test_numbers_that_json_does_not_know_become_null():
    text = json_text({"a": [1.5, float("nan")], "b": {"c": float("inf"), "d": -float("inf")}})
    assert json.loads(text) == {"a": [1.5, None], "b": {"c": None, "d": None}}


def test_keys_become_text_paths_too_and_tuples_lists():
    assert json.loads(json_text({3: (1, 2), "file": Path("a/b")})) == {"3": [1, 2], "file": "a/b"}


def test_letters_stay_readable_and_the_text_ends_its_line():
    assert json_text({"é": "漢"}) == '{\n  "é": "漢"\n}\n'


@pytest.mark.parametrize(
    ("path", "told"), [("out/a.json", "a.json"), ("out", "."), ("b.json", "../b.json"), ("in/c", "../in/c")]
)
def test_paths_are_told_as_seen_from_a_folder(tmp_path, monkeypatch, path, told):
    monkeypatch.chdir(tmp_path)
    assert path_from(Path("out"), Path(path)) == told
    assert path_from(Path("out").absolute(), Path(path)) == path_from(Path("out"), Path(path).absolute()) == told
