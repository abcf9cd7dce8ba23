"""`mirrorsd retrodict` by its contract: cases, and a summary with what was skipped."""

import json

from typer.testing import CliRunner

from mirrorsd.cli.app import app
from tests.planner.retrodict.test_retrodiction import CASES


def run(*words, exit_code=0):
    result = CliRunner().invoke(app, ["retrodict", *map(str, words)])
    assert result.exit_code == exit_code, result.output
    return result


def test_scripts_get_what_was_promised():
    found = json.loads(run(CASES, "--json").stdout)
    keys = {"id", "question", "drafted", "published", "predicted", "low", "high", "error"}
    assert all(keys <= set(one) for one in found["cases"])
    assert {"ratio", "absolute", "baselines", "skipped"} <= set(found["summary"])
    assert {"median_abs_error", "coverage"} <= set(found["summary"]["ratio"])
    assert found["summary"]["skipped"]["count"] == len(found["summary"]["skipped"]["cases"])


def test_people_get_tables_and_what_they_are_worth():
    told = run(CASES).stdout
    assert "Gain of speculation: " in told
    assert "Not predicted: ane-both (absolute): the case does not say how weights are stored" in " ".join(told.split())


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert "cases.yaml" in run(tmp_path / "cases.yaml", exit_code=2).stderr
