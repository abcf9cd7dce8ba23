import json
from pathlib import Path

import pytest

from decoding.errors import ConfigError
from mirrorsd.cli.outputs import with_default_destination, write_json


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        (["simulate", "--json"], ["simulate", "--json", "-"]),
        (["simulate", "--json", "--trace", "t.json"], ["simulate", "--json", "-", "--trace", "t.json"]),
        (["simulate", "--json", "-"], ["simulate", "--json", "-"]),
        (["demo", "--json", "out.json"], ["demo", "--json", "out.json"]),
        (["demo", "--json=out.json"], ["demo", "--json=out.json"]),
        (["demo"], ["demo"]),
    ],
)
def test_json_without_a_path_means_stdout(given, completed):
    assert with_default_destination(given) == completed


def test_a_path_leaves_stdout_to_the_text(tmp_path, capsys):
    path = tmp_path / "deep" / "result.json"
    assert write_json({"a": 1}, str(path))
    assert json.loads(path.read_text()) == {"a": 1}
    assert capsys.readouterr().out == ""


def test_stdout_gets_nothing_but_the_json(capsys):
    assert not write_json({"a": 1}, "-")
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_a_file_tells_paths_as_seen_from_its_own_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = {"folder": "out/demo", "name": "out/demo"}
    write_json(result, "results/deep/a.json", relative=["folder"])
    assert json.loads(Path("results/deep/a.json").read_text()) == {"folder": "../../out/demo", "name": "out/demo"}
    write_json(result, "-", relative=["folder"])
    assert json.loads(capsys.readouterr().out) == result


def test_without_the_option_nothing_is_written(capsys):
    assert write_json({"a": 1}, None)
    assert capsys.readouterr().out == ""


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        write_json({}, str(tmp_path))
