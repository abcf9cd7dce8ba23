"""`mirrorsd import`: an engine's own benchmark as a table, as JSON, and as what to set in a plan."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner

from decoding.schedule import load_schedule
from mirrorsd.cli.app import app
from sim.acceptance.assumed import parse_acceptance
from tests.planner.imported.test_llama_bench import JSONL

PAGES = JSONL.parent


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


@pytest.fixture
def engine(tmp_path):
    """A profile and an acceptance of an engine, as files."""
    profile, accepted = tmp_path / "engine.yaml", tmp_path / "accepted.yaml"
    pages = [PAGES / name for name in ("llama-bench.jsonl", "draft-bench.jsonl", "llama-server-metrics.txt")]
    run(*pages, "--out", tmp_path / "curves.yaml", "--profile-out", profile, "--acceptance-out", accepted)
    return profile, accepted


def test_an_engine_is_simulated_as_its_rounds_come_to(engine, tmp_path):
    """A round drafts two rows one by one, verifies three, and reads them with the draft once more: by hand."""
    profile, accepted = engine
    schedule = {"method": "speculative", "target_lane": "engine", "draft_lane": "engine", "num_speculative_tokens": 2}
    (tmp_path / "two.yaml").write_text(json.dumps(schedule | {"drafter": "llama 1B Q4_0"}))
    asked = ["--profile", profile, "--acceptance", accepted, "--schedule", tmp_path / "two.yaml", "--json"]
    found = json.loads(CliRunner().invoke(app, ["simulate", *map(str, asked)]).stdout)
    round_s = 2 * 1.6e-3 + 10e-3 + 2e-3
    assert found["tpot_s"] * found["mean_acceptance_length"] == pytest.approx(round_s, rel=0.02)
    assert found["mean_acceptance_length"] == pytest.approx(1 + 0.75 + 0.5, rel=0.02)


def test_a_search_finds_the_window_of_an_engine(engine, tmp_path):
    profile, accepted = engine
    asked = ["search", "--profile", profile, "--acceptance", accepted, "--out", tmp_path / "best.yaml"]
    assert CliRunner().invoke(app, [*map(str, asked)]).exit_code == 0
    assert load_schedule(tmp_path / "best.yaml").num_speculative_tokens == 2


def test_curves_are_written_as_they_are_told_to_scripts(engine, tmp_path):
    written = yaml.safe_load((tmp_path / "curves.yaml").read_text())["curves"]
    assert (
        written == json.loads(run(PAGES / "llama-bench.jsonl", PAGES / "draft-bench.jsonl", "--json").stdout)["curves"]
    )


@pytest.mark.parametrize(
    ("pages", "option", "told"),
    [
        (["llama-server-metrics.txt"], "--out", "no times in these files"),
        (["llama-bench.jsonl"], "--acceptance-out", "nothing of drafted tokens"),
        (["vllm-metrics.txt"], "--profile-out", "there are curves of none"),
    ],
)
def test_what_is_not_there_is_not_written(tmp_path, pages, option, told):
    output = tmp_path / "out.yaml"
    assert told in " ".join(run(*[PAGES / name for name in pages], option, output, exit_code=2).stderr.split())
    assert not output.exists()


def test_several_runs_are_tasks_of_one_acceptance(tmp_path):
    output = tmp_path / "accepted.yaml"
    run(PAGES / "vllm-metrics.txt", PAGES / "speculation_profile.json", "--acceptance-out", output)
    found = parse_acceptance(str(output)).by_task
    assert {name: rates.rates for name, rates in found.items()} == {
        "vllm-metrics.txt": (0.8, 0.625, 0.4),
        "speculation_profile.json": (0.8, 0.75, 0.5),
    }


def test_a_plan_takes_an_engine_for_the_machine_that_it_is(tmp_path):
    """Of the models that it timed passes cost what it said, by layers or not."""
    engine = tmp_path / "engine.yaml"
    models = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b"]
    pages = [PAGES / "llama-bench.jsonl", PAGES / "draft-bench.jsonl"]
    run(*pages, *models, "--weights", "q4_0", "--profile-out", engine)
    asked = [
        "plan",
        *models,
        "--profile",
        engine,
        "--acceptance",
        "0.75,0.667",
        "--context",
        "64",
        "--new-tokens",
        "32",
    ]
    found = json.loads(CliRunner().invoke(app, [*map(str, asked), "--json"]).stdout)["ranking"]
    by_window = {one["schedule"].get("num_speculative_tokens", 0): one["tpot_s"] for one in found}
    assert by_window[0] == pytest.approx(8e-3, rel=0.01)
    assert by_window[2] * (1 + 0.75 + 0.5) == pytest.approx(2 * 1.6e-3 + 10e-3 + 2e-3, rel=0.03)
