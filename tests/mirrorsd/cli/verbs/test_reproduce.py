import json
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

import planner.reproduce
from mirrorsd.cli.app import app

TABLE = Path(planner.reproduce.__file__).parent / "mirror-sd-qwen3-14b.csv"


def run(*words, exit_code=0):
    asked = ["reproduce", "--target", "qwen3-14b", "--platform", "m2-ultra-x8", *map(str, words)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == exit_code, result.output
    return result


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    paths = {name: folder / f"{name}.txt" for name in ("json", "out", "save-constants")}
    options = [word for name, path in paths.items() for word in (f"--{name}", path)]
    result = run("--published", TABLE, *options)
    return result, {name: path.read_text() for name, path in paths.items()}, paths


def test_the_json_holds_what_scripts_are_promised(fitted):
    _, texts, _ = fitted
    found = json.loads(texts["json"])
    assert {"cells", "mean_abs_error", "fitted"} <= set(found)
    assert len(found["cells"]) == 12
    for cell in found["cells"]:
        assert {"temperature", "task", "method", "published", "predicted", "error"} <= set(cell)
        assert cell["error"] == pytest.approx(cell["predicted"] / cell["published"] - 1)
        assert cell["method"] == "Mirror-SD"
    assert found["mean_abs_error"] == pytest.approx(fmean(abs(cell["error"]) for cell in found["cells"]))
    assert found["mean_abs_error"] <= 0.08  # issue I: what is asked for
    for one in found["fitted"].values():
        assert one["low"] <= one["value"] <= one["high"]
        assert {"datasheet", "source"} <= set(one)


def test_every_cell_and_constant_is_shown_and_the_page_written(fitted):
    result, texts, _ = fitted
    lines = result.stdout.splitlines()
    table = lines[: lines.index("")]
    assert len(table) == 14
    assert max(map(len, table)) <= 80
    assert "Mean |error| of predicted Mirror-SD: " in result.stdout
    assert "fitted" in result.stdout
    assert texts["out"].startswith("<!doctype html>")


def test_kept_constants_predict_other_models_without_a_fit(fitted):
    _, _, paths = fitted
    words = ["--published", TABLE, "--no-fit", "--constants", paths["save-constants"], "--json"]
    same = json.loads(run(*words).stdout)
    assert same["fitted"] == {}
    assert same["mean_abs_error"] == pytest.approx(json.loads(fitted[1]["json"])["mean_abs_error"], abs=1e-3)
    other = json.loads(run(*words, "--target", "qwen3-32b").stdout)
    assert len(other["cells"]) == 12
    assert other["mean_abs_error"] != same["mean_abs_error"]


def test_without_a_fit_the_shipped_constants_are_taken_and_data_sheets_if_asked_for():
    shipped = json.loads(run("--published", "mirror-sd-qwen3-14b", "--no-fit", "--json").stdout)
    assert "fitted to mirror-sd-qwen3-14b.csv" in shipped["constants"]["origin"]
    assert shipped["mean_abs_error"] <= 0.045
    sheets = json.loads(run("--published", TABLE, "--no-fit", "--constants", "datasheet", "--json").stdout)
    assert all(one["value"] == one["datasheet"] for one in sheets["constants"]["values"].values())
    assert sheets["mean_abs_error"] > shipped["mean_abs_error"]


def test_errors_of_a_table_that_the_constants_were_fitted_to_are_not_passed_off_as_predicted(tmp_path):
    said = "fitted to this very table before, so the error is that of a fit"
    page, other = tmp_path / "page.html", tmp_path / "other.csv"
    other.write_text(TABLE.read_text())
    found = run("--published", "mirror-sd-qwen3-14b", "--no-fit", "--out", page)
    assert said in " ".join(found.stdout.split())
    assert said in page.read_text()
    assert said not in " ".join(run("--published", other, "--no-fit").stdout.split())
    sheets = run("--published", "mirror-sd-qwen3-14b", "--no-fit", "--constants", "datasheet")
    assert said not in " ".join(sheets.stdout.split())


def test_what_is_wrong_in_the_file_is_one_message(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("temperature,task,Vanilla SD,Mirror-SD\n0,qa,much,3\n")
    result = run("--published", path, exit_code=2)
    assert f"{path}:2: column 'Vanilla SD'" in result.stderr
    assert "'much'" in result.stderr


def test_constants_belong_to_predictions_without_a_fit():
    result = run("--published", TABLE, "--constants", "datasheet", exit_code=2)
    assert "--no-fit" in result.stderr
