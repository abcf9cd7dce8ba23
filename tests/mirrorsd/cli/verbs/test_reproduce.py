import json
from pathlib import Path
from statistics import fmean

import pytest

import planner.reproduce
from tests.journeys import quick
from tests.mirrorsd.cli.calls import call, json_of

TABLE = Path(planner.reproduce.__file__).parent / "mirror-sd-qwen3-14b.csv"
ASKED = ("reproduce", "--target", "qwen3-14b", "--platform", "m2-ultra-x8", "--published")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    paths = {"json": folder / "found.json", "out": folder / "page.html"}
    options = [word for name, path in paths.items() for word in (f"--{name}", path)]
    with pytest.MonkeyPatch.context() as patch:
        quick.few_fits(patch.setattr)
        result = call(*ASKED, TABLE, *options, exit_code=0)
    return result.stdout, json.loads(paths["json"].read_text()), paths


def test_the_json_holds_what_scripts_are_promised(fitted):
    _, found, _ = fitted
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
    shown, _, paths = fitted
    lines = shown.splitlines()
    table = lines[: lines.index("")]
    assert len(table) == 14
    assert max(map(len, table)) <= 80
    assert "Mean |error| of predicted Mirror-SD: " in shown
    assert "fitted" in shown
    assert paths["out"].read_text().startswith("<!doctype html>")


def test_without_a_fit_the_shipped_constants_predict_any_model():
    words = (*ASKED, "mirror-sd-qwen3-14b", "--no-fit")
    found, other = json_of(*words), json_of(*words, "--target", "qwen3-32b")
    assert "fitted to mirror-sd-qwen3-14b.csv" in found["constants"]["origin"]
    assert found["fitted"] == {}
    assert found["mean_abs_error"] <= 0.045 < other["mean_abs_error"]
    assert len(other["cells"]) == 12


def test_errors_of_a_table_that_the_constants_were_fitted_to_are_not_passed_off_as_predicted(tmp_path, monkeypatch):
    said = "fitted to this very table earlier, so the error is that of a fit"
    page, copy, other = tmp_path / "page.html", tmp_path / "copy.csv", tmp_path / TABLE.name
    copy.write_text(TABLE.read_text().replace("# ", "#\n# "))
    other.write_text(TABLE.read_text().replace("4.13", "2.13"))
    own = (*ASKED, "mirror-sd-qwen3-14b", "--no-fit")
    assert said in call(*own, "--out", page).shown
    assert said in page.read_text()
    assert said in call(*ASKED, copy, "--no-fit", exit_code=0).shown
    monkeypatch.chdir(tmp_path)
    assert said not in call(*ASKED, other.name, "--no-fit", exit_code=0).shown


def test_the_targets_name_tells_how_weights_are_stored():
    words = (*ASKED, "mirror-sd-qwen3-14b", "--no-fit", "--target")
    named, asked = json_of(*words, "Qwen/Qwen3-14B-AWQ"), json_of(*words, "qwen3-14b", "--weights", "awq-int4")
    assert named == asked
    assert named["plain_tpot_s"] < json_of(*words, "qwen3-14b")["plain_tpot_s"]
