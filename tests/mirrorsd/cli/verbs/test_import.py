"""`mirrorsd import`: an engine's own benchmark as a table, as JSON, and as what to set in a plan."""

import json
import re

from typer.testing import CliRunner

from mirrorsd.cli.app import app
from tests.planner.test_bench_file import JSONL


def run(*words, exit_code=0):
    result = CliRunner().invoke(app, ["import", *map(str, words)])
    assert result.exit_code == exit_code, result.output
    return result


def test_people_get_a_table_and_what_to_set_which_a_plan_takes():
    shown = " ".join(run(JSONL).stdout.split())
    assert "llama 8B Q4_0 on NVIDIA GeForce RTX 3090" in shown
    (setting,) = re.findall(r"--set DEVICE(\.growth_per_row=[\d.]+),", shown)
    asked = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--platform", "rtx4090+cpu", "--context", "64"]
    planned = CliRunner().invoke(app, ["plan", *asked, "--set", f"gpu{setting}", "--json"])
    assert planned.exit_code == 0, planned.output
    (used,) = (one for one in json.loads(planned.stdout)["assumptions"] if one["field"] == "gpu.growth_per_row")
    assert used["value"] == float(setting.rpartition("=")[2])


def test_scripts_get_curves_in_the_form_of_curve():
    (found,) = json.loads(run(JSONL, "--json").stdout)["curves"]
    assert {"target", "device", "engine", "context", "source", "rows"} <= set(found)
    assert found["rows"][0]["rows"] == 1
    assert all(one["low"] <= one["time_s"] <= one["high"] for one in found["rows"])
    assert found["growth_per_row"]["low"] <= found["growth_per_row"]["value"] <= found["growth_per_row"]["high"]


def test_a_file_that_is_not_there_is_named():
    assert "nowhere.jsonl" in run("nowhere.jsonl", exit_code=2).stderr
